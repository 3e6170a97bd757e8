"""Reference [8]: Gibbs sampling and Monte Carlo EM on the same decoder."""
