"""Where consumers of MetaQ 1.x keep their offsets, and where messages wait that could not be sent or consumed."""
