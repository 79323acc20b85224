"""What servers tell of themselves: who they are, their options, their log."""
