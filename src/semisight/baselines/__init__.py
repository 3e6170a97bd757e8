"""What the paper compares with, one small sourced file each."""
