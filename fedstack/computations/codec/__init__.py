"""Every value as bytes, and back: as the messages of the language, or as ours, with the memory of arrays beside."""
