"""The commands, by what people want: to start, to use a run, labels, experiments. torch waits until they run."""
