"""Routes of other tools' kernels: the best known configurations of a problem, and the kernels on record."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.access.auth import Who, Within
from service.api.wire import Body, Etag, describe, reply_tagged
from service.context import Ctx
from service.records import foreign
from service.records.foreign import ForeignList, ForeignProblems
from service.records.foreign_ranking import (
    MAX_ANSWERS,
    ForeignBest,
    ForeignQuestion,
    ForeignTerms,
)
from service.turn import FEW, in_turn
from strategy.record import convert

router = APIRouter(prefix="/v1/foreign/{tool}", tags=["foreign"])

Tool = Annotated[str, Path(pattern="^[a-z][a-z0-9_]{0,30}$")]
_RANKING = (
    "Answers are ranked by device: of the same model, of the same architecture, others; among those of one model "
    "the fastest come first, then winners without a time. An answer has an ETag: with If-None-Match an unchanged "
    "one is 304."
)


# `async`, as other dependencies take a thread for each request.
async def terms_of(
    device_model: Annotated[str, Query(max_length=200)] = "",
    architecture: Annotated[str, Query(max_length=100)] = "",
    version: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ANSWERS)] = 5,
    failures: bool = False,
) -> ForeignTerms:
    """The dependency of routes that rank results."""
    return ForeignTerms(
        device_model=device_model, architecture=architecture, version=version, limit=limit, failures=failures
    )


Terms = Annotated[ForeignTerms, Depends(terms_of)]


class ForeignQuestions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch of independent questions."""

    requests: Annotated[tuple[ForeignQuestion, ...], msgspec.Meta(min_length=1, max_length=1000)]

    def __post_init__(self) -> None:
        asked = sum(one.limit for one in self.requests)
        if asked > MAX_ANSWERS:
            raise ValueError(
                f"requests: the limits of a batch sum up to {asked}, which is more than {MAX_ANSWERS}: "
                "lower them, or divide the batch"
            )


class ForeignAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers in the order of the questions."""

    answers: tuple[ForeignBest, ...]


@router.get(
    "/best",
    **describe(
        "The best configurations of a tool's kernel", gives=ForeignBest, errors=(422,),
        note=f'`workload` is the text of the problem: `triton.matmul(){{"key": […]}}`. {_RANKING}',
    ),
)
def find_best(
    context: Ctx,
    within: Within,
    tool: Tool,
    workload: Annotated[str, Query(max_length=20_000)],
    terms: Terms,
    known: Etag = None,
) -> Response:
    asked = convert({"workload": workload, **msgspec.structs.asdict(terms)}, ForeignQuestion)
    with context.store.read() as connection:
        found = foreign.find_best(connection, tool, asked, within)
    return reply_tagged(found, known)


@router.get(
    "/problems",
    **describe(
        "The best configurations of all problems of a kernel", gives=ForeignProblems, errors=(422,),
        note="As `best`, for each problem on record, the newest first, so that a tool asks once for a kernel. The "
        "answers of a problem are those of the likest device that has any; `page` is the number of problems.",
    ),
)
async def find_problems(
    context: Ctx,
    who: Who,
    within: Within,
    request: Request,
    tool: Tool,
    kernel: Annotated[str, Query(max_length=200)],
    terms: Terms,
    page: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int | None, Query(ge=0)] = None,
    known: Etag = None,
) -> Response:
    def find() -> Response:
        with context.store.read() as connection:
            found = foreign.find_problems(connection, tool, kernel, terms, within, page=page, cursor=cursor)
        return reply_tagged(found, known)

    return await in_turn(context, request, who, page > FEW, find)


@router.post(
    "/best:batch",
    **describe(
        "The best configurations of many kernels", takes=ForeignQuestions, gives=ForeignAnswers,
        example={
            "requests": [{"workload": 'triton.add_one(){"key":[4096,"torch.float32"]}', "device_model": "NVIDIA H100"}]
        },
        note="All are answered from the records of one moment. The limits of all questions sum up to at most "
        f"{MAX_ANSWERS}. {_RANKING}",
    ),
)
async def find_many(
    context: Ctx, who: Who, within: Within, request: Request, tool: Tool, body: Body[ForeignQuestions],
    known: Etag = None,
) -> Response:
    def find() -> Response:
        with context.store.read() as connection:
            answers = foreign.find_many(connection, tool, body.requests, within)
        return reply_tagged(ForeignAnswers(answers=tuple(answers)), known)

    return await in_turn(context, request, who, len(body.requests) > FEW, find)


@router.get(
    "/list",
    **describe(
        "The kernels of a tool", gives=ForeignList, errors=(422,),
        note="The newest first, each problem and device model with its best and the spread of its candidates.",
    ),
)
def list_kernels(
    context: Ctx,
    within: Within,
    tool: Tool,
    kernel: Annotated[str | None, Query(max_length=200)] = None,
    device_model: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int | None, Query(ge=0)] = None,
    known: Etag = None,
) -> Response:
    with context.store.read() as connection:
        found = foreign.list_kernels(
            connection, tool, within, kernel=kernel, device_model=device_model, limit=limit,
            cursor=cursor,
        )
    return reply_tagged(found, known)
