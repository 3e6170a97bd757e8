"""The operations of encoder and decoder, fast and naive."""
