"""The addresses: pages, and the API that they and programs use. Requests in, answers out."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.routing import Route

from semisight import __version__
from semisight.data.label_csv import Entry
from semisight.data.label_table import ReadOnly
from semisight.errors import UserError
from semisight.runs.run import Run
from semisight.server import schemas
from semisight.server.access import COOKIE, Access
from semisight.server.batching import Full
from semisight.server.guard import Guard
from semisight.server.metrics import CONTENT_TYPE, Metrics
from semisight.server.pages import add_pages
from semisight.server.predicting import Predicting, upload_schema
from semisight.server.retraining import Busy
from semisight.server.service import NotReady, Service, Unknown
from semisight.server.uploads import Refused

T = TypeVar("T")
_TENDED = 1.0  # seconds between looks at the file of tokens, and at the figures for other workers


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    words = {
        400: "not understood", 401: "a token is needed", 403: "from another page", 404: "there is no such image",
        408: "took too long to arrive", 409: "not now", 413: "too large", 415: "not a kind of content taken here",
        421: "wrong host", 422: "cannot be used", 503: "busy or not ready yet: try again after Retry-After seconds",
    }  # fmt: skip
    return {status: {"model": schemas.Problem, "description": words[status]} for status in statuses}


_READ = _problems(400, 401, 421, 422, 503)
_WRITE = _problems(400, 401, 403, 408, 413, 421, 422, 503)


def create_app(service: Service, access: Access) -> FastAPI:
    """The application for one service; its end is that of the service."""
    predicting, metrics = Predicting(service), Metrics()
    writing = _Writing(service.limits.writes)

    async def tend() -> None:
        while True:
            await asyncio.sleep(_TENDED)
            metrics.sample()
            await asyncio.to_thread(access.refresh)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        tending = asyncio.create_task(tend())
        yield
        tending.cancel()
        writing.close()
        await asyncio.to_thread(service.close)
        predicting.close()

    app = FastAPI(
        title="semisight",
        version=__version__,
        description="Labels, captions and pictures from a run; labels for it from people.",
        lifespan=lifespan,
        docs_url=None,  # its page would load from another host
        redoc_url=None,
        openapi_url="/api/openapi.json",
        dependencies=[] if access.is_open else [Depends(HTTPBearer(auto_error=False))],
        redirect_slashes=False,
    )
    app.state.limits, app.state.service, app.state.metrics = service.limits, service, metrics
    known = functools.cache(lambda: frozenset(route.path for route in app.routes if isinstance(route, Route)))
    app.add_middleware(Guard, access=access, limits=service.limits, metrics=metrics, known=lambda path: path in known())
    _add_problems(app)
    add_pages(app)
    _add_health(app, service, metrics)

    @app.get("/api/status", responses=_READ, tags=["run"])
    def status() -> schemas.StatusOut:
        """The run that answers, how far its images are read, the table, and the training if there is one."""
        run, limits = service.run, service.limits
        return schemas.StatusOut(
            version=__version__,
            run=str(run.folder.path),
            step=run.step,
            image=list(run.architecture.image_shape),
            classes=service.classes(),
            captions=service.answerer.describer is not None,
            advice=_advice(run),
            waiting=service.batcher.waiting,
            reading=schemas.ReadingOut(**asdict(service.reading)),
            table=_table(service),
            limits=schemas.LimitsOut(upload_bytes=limits.upload_bytes, pixels=limits.pixels, images=limits.images),
            training=_training(service),
        )

    @app.post(
        "/api/predict",
        response_model=schemas.PredictOut,
        responses=_WRITE | _problems(415),
        openapi_extra=upload_schema(service.limits),
        tags=["run"],
    )
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=1000, description="so many of the most probable labels")] = 5,
        captions: Annotated[int, Query(ge=0, le=5, description="so many captions, if the run has learned any")] = 1,
        reconstruct: Annotated[bool, Query(description="also draw the image from its code")] = True,
        nearest: Annotated[int, Query(ge=0, le=20, description="so many of the nearest training images")] = 5,
    ) -> Response:
        """Labels with probabilities, captions, the reconstruction and the nearest training images.

        The body is a form with one or more files called `images`, or the bytes of one image. If one image cannot be
        read, none is answered and the reason is given.
        """
        return await predicting(request, top, captions, reconstruct, nearest)

    @app.get(
        "/api/images",
        response_class=Response,
        responses={
            200: {"content": {"image/png": {}, "image/jpeg": {}}, "description": "the image"},
            **_READ,
            **_problems(404),
        },
        tags=["labels"],
    )
    def image(file: Annotated[str, Query(max_length=1000)]) -> Response:
        """One of the images of the run, to look at."""
        if file not in service.index:
            raise Unknown
        content = service.index.image(file)
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    @app.get("/api/search", responses=_READ | _problems(404), tags=["run"])
    def search(
        words: Annotated[str, Query(min_length=1, max_length=300, examples=["a dog on the grass"])],
        n: Annotated[int, Query(ge=1, le=100)] = 12,
    ) -> schemas.SearchOut:
        """The images of the run for which a run that learned captions gives the words the highest probability."""
        try:
            found, unknown = service.search(words, n)
        except UserError as error:
            raise HTTPException(404, str(error)) from None
        images = [schemas.FoundOut(file=file, log_prob=round(log_prob, 4)) for file, log_prob in found]
        return schemas.SearchOut(images=images, unknown=list(unknown))

    @app.get("/api/suggestions", responses=_READ, tags=["labels"])
    def suggestions(n: Annotated[int, Query(ge=1, le=50)] = 8) -> schemas.SuggestionsOut:
        """The images that are most worth a label, the best first: doubtful ones, unlike those that have a label."""
        found = service.suggestions(n)
        images = [
            schemas.SuggestionOut(
                file=one.file,
                label=one.entry.label,
                caption=one.entry.caption,
                guesses=[schemas.GuessOut(label=label, probability=p) for label, p in one.guesses],
            )
            for one in found
        ]
        return schemas.SuggestionsOut(images=images, classes=service.classes())

    @app.post("/api/labels", responses=_WRITE | _problems(404, 409), tags=["labels"])
    async def put_label(request: Request, given: schemas.LabelIn) -> schemas.EntryOut:
        """Writes a label or a caption of an image, or both, for the table. Answered once it is on disk."""
        entry = await writing(service.put, given.file, given.label, given.caption, request.state.who)
        metrics.labels.inc()
        return _entry(service, given.file, entry)

    @app.post("/api/labels/skip", responses=_WRITE | _problems(404), tags=["labels"])
    async def skip(request: Request, given: schemas.FileIn) -> schemas.Done:
        """Suggests this image no more until the server is started again."""
        await writing(service.skip, given.file, request.state.who)
        return schemas.Done()

    @app.post("/api/labels/undo", responses=_WRITE | _problems(404, 409), tags=["labels"])
    async def undo(request: Request, given: schemas.FileIn) -> schemas.EntryOut:
        """Takes back the last change of this image since the server was started; it is suggested next."""
        entry = await writing(service.undo, given.file, request.state.who)
        metrics.labels.inc()
        return _entry(service, given.file, entry)

    @app.get("/api/training", responses=_READ, tags=["training"])
    def training() -> schemas.TrainingOut:
        """How far the training in the background is."""
        return _training(service)

    @app.post("/api/training", status_code=202, responses=_WRITE | _problems(409), tags=["training"])
    def start_training(given: schemas.TrainingIn) -> schemas.TrainingOut:
        """Trains a new run, in a folder beside that of this one, with all labels of the table; then serves it."""
        service.retrain(given.minutes)
        return _training(service)

    @app.delete("/api/training", responses=_WRITE, tags=["training"])
    def stop_training() -> schemas.TrainingOut:
        """Stops the training; what it has learned so far is saved in its folder."""
        service.training.stop()
        return _training(service)

    @app.post("/api/session", responses=_WRITE, tags=["run"])
    async def session(given: schemas.SessionIn) -> JSONResponse:
        """Exchanges a token for a cookie that holds for some hours, for pages."""
        who = None if access.is_open else access.person_with(given.token)
        if who is None and not access.is_open:
            raise HTTPException(401, "this is not a token that is known here")
        answer = JSONResponse(schemas.Done().model_dump())
        if who is not None:
            answer.set_cookie(
                COOKIE, access.cookie_of(who), max_age=int(access.seconds), httponly=True, samesite="strict"
            )
        return answer

    return app


def _add_problems(app: FastAPI) -> None:
    def problem(status: int, detail: str, **headers: str) -> JSONResponse:
        return JSONResponse({"detail": detail}, status, headers or None)

    @app.exception_handler(HTTPException)
    def _(request: Request, error: HTTPException) -> JSONResponse:
        headers = error.headers
        if error.status_code == 405:  # of several routes to one path the framework names the first one's method
            path = request.url.path
            found = {
                m
                for route in app.routes
                if isinstance(route, Route) and route.path == path
                for m in route.methods or ()
            }
            headers = {"Allow": ", ".join(sorted(found))}
        return JSONResponse({"detail": str(error.detail)}, error.status_code, headers)

    @app.exception_handler(RequestValidationError)
    def _(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
        return problem(422, f"{where}: {first['msg']}" if where else str(first["msg"]))

    @app.exception_handler(Refused)
    def _(_: Request, error: Refused) -> JSONResponse:
        return problem(error.status, error.message)

    @app.exception_handler(Full)
    def _(_: Request, __: Full) -> JSONResponse:
        return problem(503, "too many images are waiting: try again in a moment", **{"Retry-After": "1"})

    @app.exception_handler(NotReady)
    def _(_: Request, __: NotReady) -> JSONResponse:
        return problem(503, "the images of the run are not read yet: try again", **{"Retry-After": "2"})

    @app.exception_handler(Unknown)
    def _(_: Request, __: Unknown) -> JSONResponse:
        return problem(404, "there is no such image, or nothing to take back")

    @app.exception_handler(Busy)
    def _(_: Request, __: Busy) -> JSONResponse:
        return problem(409, "a training is under way: wait for it, or stop it")

    @app.exception_handler(ReadOnly)
    def _(_: Request, error: ReadOnly) -> JSONResponse:
        return problem(409, str(error))  # it will not help to try again

    @app.exception_handler(UserError)
    def _(request: Request, error: UserError) -> JSONResponse:
        if request.url.path == "/api/training":
            return problem(409, str(error))
        return problem(503, str(error), **{"Retry-After": "10"})  # the table could not be written, say


def _advice(run: Run) -> str:
    believable = run.labels.believable() if run.has("labels") else ""
    return " ".join(part for part in (run.unfinished, believable) if part)


def _table(service: Service) -> schemas.TableOut | None:
    try:
        table, counts = service.table, service.known.counts()
        return schemas.TableOut(
            path=str(table.path),
            images=len(service.index),
            labelled=sum(counts.values()),
            captioned=service.known.captions[True],
            counts=counts,
            problem=table.read_only or table.problem,
        )
    except NotReady:
        return None


def _entry(service: Service, file: str, entry: Entry) -> schemas.EntryOut:
    labelled = sum(service.known.counts().values())
    return schemas.EntryOut(file=file, label=entry.label, caption=entry.caption, labelled=labelled)


def _add_health(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """For whoever looks after the machine; the first two without a token, for they tell nothing else."""

    @app.get("/healthz", tags=["health"], responses=_problems(400, 421))
    async def alive() -> schemas.Health:
        """Answered as long as the process is alive."""
        return schemas.Health(ready=service.is_ready, images=service.reading.state)

    @app.get("/readyz", tags=["health"], responses={**_problems(400, 421), 503: {"model": schemas.Health}})
    async def ready() -> JSONResponse:
        """200 once the model answers and there is room in its queue, 503 before that."""
        found = schemas.Health(ready=service.is_ready, images=service.reading.state)
        return JSONResponse(found.model_dump(), 200 if found.ready else 503)

    @app.get("/metrics", tags=["health"], response_class=Response, responses=_problems(400, 401, 421))
    async def figures() -> Response:
        """Prometheus's text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    metrics.follow("images_waiting", "Images that wait for the model.", lambda: service.batcher.waiting)
    metrics.follow("images", "Images that the model has answered for.", lambda: service.batcher.items, "sum")
    metrics.follow("batches", "Batches that it saw them in.", lambda: service.batcher.batches, "sum")
    labelled = lambda: sum(service.known.counts().values())  # noqa: E731
    metrics.follow("labelled_images", "Images with a label.", labelled, "livemax")
    behind = "1 if labels wait to be merged into the table."
    metrics.follow("table_behind", behind, lambda: service.is_behind, "livemax")


class _Writing:
    """Changes of labels, one after the other in a thread of their own: a disk or a lock that hangs holds up no page."""

    def __init__(self, most: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semisight-labels")
        self._waiting, self._most = 0, most

    async def __call__(self, change: Callable[..., T], *arguments: object) -> T:
        if self._waiting >= self._most:
            raise Full
        self._waiting += 1
        try:
            # shielded: whoever goes away has asked all the same, and is not to be half answered
            work = asyncio.get_running_loop().run_in_executor(self._thread, functools.partial(change, *arguments))
            return await asyncio.shield(work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _training(service: Service) -> schemas.TrainingOut:
    progress = service.training.progress()
    return schemas.TrainingOut(**{**asdict(progress), "lines": list(progress.lines)})
