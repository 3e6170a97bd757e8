"""Speed and memory of the image model and of captions, as ratios measured in one run: `python -m benchmarks --help`."""
