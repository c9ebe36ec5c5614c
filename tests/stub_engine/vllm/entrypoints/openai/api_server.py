"""A server with vLLM's command line and URLs whose faults are chosen by STUB_FAULT.

die            ends at once, with 40 lines of log
never_ready    /health never answers 200
refuse_start   /start_profile answers 500
slow_stop      /stop_profile writes half a recording and never answers
write_nothing  the profiler starts and stops, and no file appears
fail_stop      /stop_profile answers 500
die_midrun     exits by SIGKILL during the profiled pass; a child of its own session writes the recording later
stubborn       ignores SIGINT and SIGTERM, and so does a child in a session of its own
slow_tokens    takes its time: for being interrupted
refuse_all     every request is answered 400
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from aiohttp import web

FAULT = os.environ.get("STUB_FAULT", "")
TRACE = {"schemaVersion": 1, "traceEvents": []}
ORPHAN = """
import signal, sys, time, pathlib
if sys.argv[1] == "-":
    for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
else:
    time.sleep(1.5)
    pathlib.Path(sys.argv[1]).write_text('{"traceEvents": []}')
time.sleep(300)
"""


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def orphan(target: str) -> None:
    subprocess.Popen([sys.executable, "-c", ORPHAN, target], start_new_session=True)


async def health(_request: web.Request) -> web.Response:
    return web.Response(status=503 if FAULT == "never_ready" else 200)


async def metrics(_request: web.Request) -> web.Response:
    return web.Response(text="stub_requests_total 1\n")


async def start_profile(_request: web.Request) -> web.Response:
    return web.Response(status=500 if FAULT == "refuse_start" else 200, text="no profiler today")


async def stop_profile(_request: web.Request) -> web.Response:
    file = trace_dir() / "rank0.pt.trace.json"
    if FAULT == "slow_stop":
        file.write_text('{"traceEvents": [')
        await asyncio.sleep(300)
    if FAULT == "fail_stop":
        return web.Response(status=500, text="[Errno 28] No space left on device")
    if FAULT != "write_nothing":
        file.write_text(json.dumps(TRACE))
    return web.Response()


def trace_dir() -> Path:
    return Path(json.loads(option("--profiler-config"))["torch_profiler_dir"])


async def completions(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    profiled = "profiled" in request.headers.get("X-Request-Id", "")
    if FAULT == "refuse_all":
        return web.json_response({"error": {"message": "not today"}}, status=400)
    if FAULT == "die_midrun" and profiled:
        orphan(str(trace_dir() / "rank0.pt.trace.json"))
        os.kill(os.getpid(), signal.SIGKILL)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(body["max_tokens"]):
        await asyncio.sleep(0.3 if FAULT == "slow_tokens" else 0.002)
        last = number == body["max_tokens"] - 1
        choice = {"index": 0, "delta": {"content": ""}, "token_ids": [7], "finish_reason": "length" if last else None}
        await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
    counts = {
        "prompt_tokens": 10,
        "completion_tokens": body["max_tokens"],
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    await response.write(f"data: {json.dumps({'choices': [], 'usage': counts})}\n\ndata: [DONE]\n\n".encode())
    return response


def main() -> None:
    if FAULT == "die":
        sys.stderr.write("".join(f"log line {number}\n" for number in range(40)))
        sys.exit(3)
    app = web.Application()
    app.add_routes([
        web.get("/health", health), web.get("/metrics", metrics), web.post("/start_profile", start_profile),
        web.post("/stop_profile", stop_profile), web.post("/v1/chat/completions", completions),
        web.post("/v1/completions", completions),
    ])  # fmt: skip
    stubborn = FAULT == "stubborn"
    if stubborn:
        orphan("-")
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, option("--host"), int(option("--port"))).start())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, (lambda: None) if stubborn else loop.stop)
    loop.run_forever()


if __name__ == "__main__":
    main()
