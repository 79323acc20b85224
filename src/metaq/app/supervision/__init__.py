"""What those who look after a process are told of it: service managers, health pages, the log of a long start."""
