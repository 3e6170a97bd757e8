"""Speed and memory of the image model, as ratios measured in one run: `python -m benchmarks --help`."""
