"""What a program tells the world: metrics as files and pictures, and in experiment trackers."""
