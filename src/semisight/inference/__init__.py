"""What a trained model says of images: codes, labels, captions, novelty, imputation."""
