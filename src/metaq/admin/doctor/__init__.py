"""What is wrong with a broker or a name server, found from the client's side."""
