"""`semisight serve`: a run behind a JSON API, a page to try it on, and a page to label more images.

connections.py  connections before there is a request: deadlines, and who makes room when there are too many
guard.py        who may ask: host, token, origin; how much a request may send and how long it may take
access.py       tokens, one or one for each person, and sessions
metrics.py      what is counted, for Prometheus
web.py          the addresses: requests in, answers out (schemas.py says what both look like)
uploads.py      bytes that somebody sent to pixels, or a reason why not
batching.py     requests that wait are answered together, by one thread
answering.py    what the model says of a batch of images
image_index.py  the images of the run: codes, nearest ones, which to label next
retraining.py   a child process that trains a new run, and how far it is
train_child.py  that process, which ends when the server does
service.py      all of these together
running.py      the process: its socket, its messages, its end
static/         the pages: plain HTML, CSS and JavaScript that ask no other host for anything
"""
