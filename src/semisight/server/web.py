"""The addresses: pages, and the API that they and programs use. Requests in, answers out."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.routing import Route

from semisight import __version__
from semisight.errors import UserError
from semisight.runs.run import Run
from semisight.server import schemas
from semisight.server.batching import Full
from semisight.server.guard import COOKIE, Access, Guard
from semisight.server.pages import add_pages
from semisight.server.predicting import Predicting, upload_schema
from semisight.server.retraining import Busy
from semisight.server.service import NotReady, Service, Unknown
from semisight.server.uploads import Refused

_DECODERS = 2  # threads that unpack images; what they unpack is bounded, so is the memory it takes


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
    decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="semisight-decode")
    predicting = Predicting(service, decoders)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)
        decoders.shutdown(cancel_futures=True)

    app = FastAPI(
        title="semisight",
        version=__version__,
        description="Labels, captions and pictures from a run; labels for it from people.",
        lifespan=lifespan,
        docs_url=None,  # its page would load from another host
        redoc_url=None,
        openapi_url="/api/openapi.json",
        dependencies=[] if access.token is None else [Depends(HTTPBearer(auto_error=False))],
        redirect_slashes=False,
    )
    app.state.limits, app.state.service = service.limits, service
    app.add_middleware(Guard, access=access, limits=service.limits)
    _add_problems(app)
    add_pages(app)

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
        if file not in service.library:
            raise Unknown
        content = service.library.image(file)
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

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

    @app.post("/api/labels", responses=_WRITE | _problems(404), tags=["labels"])
    def put_label(given: schemas.LabelIn) -> schemas.EntryOut:
        """Writes a label or a caption of an image, or both, to the table. Answered once it is on disk."""
        service.put(given.file, given.label, given.caption)
        return _entry(service, given.file)

    @app.post("/api/labels/skip", responses=_WRITE | _problems(404), tags=["labels"])
    def skip(given: schemas.FileIn) -> schemas.Done:
        """Suggests this image no more until the server is started again."""
        service.skip(given.file)
        return schemas.Done()

    @app.post("/api/labels/undo", responses=_WRITE | _problems(404), tags=["labels"])
    def undo(given: schemas.FileIn) -> schemas.EntryOut:
        """Takes back the last change of this image since the server was started; it is suggested next."""
        service.undo(given.file)
        return _entry(service, given.file)

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
    def session(given: schemas.SessionIn) -> JSONResponse:
        """Exchanges the token for a cookie, for pages."""
        if not access.right_token(given.token):
            raise HTTPException(401, "this is not the token that the server was started with")
        answer = JSONResponse(schemas.Done().model_dump())
        if access.token is not None:
            answer.set_cookie(COOKIE, access.cookie, max_age=30 * 86400, httponly=True, samesite="strict")
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

    @app.exception_handler(UserError)
    def _(request: Request, error: UserError) -> JSONResponse:
        if request.url.path == "/api/training":
            return problem(409, str(error))
        return problem(503, str(error), **{"Retry-After": "10"})  # the table could not be written, say


def _advice(run: Run) -> str:
    believable = "" if run.classifier is None else run.classifier.believable()
    return " ".join(part for part in (run.unfinished, believable) if part)


def _table(service: Service) -> schemas.TableOut | None:
    try:
        entries = service.entries()
        return schemas.TableOut(
            path=str(service.table.path),
            images=len(service.library),
            labelled=sum(bool(entry.label) for entry in entries.values()),
            captioned=sum(bool(entry.caption) for entry in entries.values()),
            counts=dict(Counter(entry.label for entry in entries.values() if entry.label)),
        )
    except NotReady:
        return None


def _entry(service: Service, file: str) -> schemas.EntryOut:
    entries = service.entries()
    labelled = sum(bool(entry.label) for entry in entries.values())
    found = entries.get(file)
    return schemas.EntryOut(
        file=file,
        label="" if found is None else found.label,
        caption="" if found is None else found.caption,
        labelled=labelled,
    )


def _training(service: Service) -> schemas.TrainingOut:
    progress = service.training.progress()
    return schemas.TrainingOut(**{**asdict(progress), "lines": list(progress.lines)})
