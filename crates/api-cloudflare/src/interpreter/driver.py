# The interpreter of a context for Python: reads requests from its input, runs their code one after the other, and writes marks
# between the output of the code. `frames.rs` has the other end.
#
# A line of the input and a mark have at most 4096 bytes and are one write, which the kernel does not divide. Both begin with the
# token of the request, which the code does not know.


def serve():
    import ast
    import base64
    import builtins
    import faulthandler
    import inspect
    import json
    import linecache
    import os
    import select
    import signal
    import sys
    import traceback
    import types

    LONGEST_PART = 4000
    LARGEST_EVENT = 16 << 20
    # The characters of an error that are sent.
    LONGEST_ERROR = 1 << 20
    MOST_INCOMPLETE = 16
    MOST_SOURCES = 256
    # The seconds that code has to end by itself after its time limit.
    GRACE = 2
    # The name of this file in tracebacks.
    DRIVER = serve.__code__.co_filename

    # The code gets an empty input and cannot close what the marks are written to.
    source = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    outputs = (os.dup(1), os.dup(2))
    owner = os.getpid()
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    sys.argv = [""]
    # With `PYTHONUNBUFFERED`, a line would be written in pieces.
    sys.stdout = sys.stderr = None
    state = {"count": 0, "running": False, "token": b"", "loop": None}

    def write(descriptor, data):
        while True:
            try:
                os.write(descriptor, data)
                return
            except BlockingIOError:
                select.select([], [descriptor], [])

    def mark(kind, payload=b"", descriptor=outputs[0]):
        write(descriptor, b"\x1e" + state["token"] + kind + payload + b"\n")

    def flush():
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except Exception:
                pass

    def encode(event):
        text = json.dumps(event, ensure_ascii=False, allow_nan=False)
        # Half a character has no place in JSON.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()

    def send(event):
        data = encode(event)
        if len(data) > LARGEST_EVENT:
            text = f"a result of {len(data)} bytes is too large: the largest has {LARGEST_EVENT}"
            data = encode({"type": "result", "text": text, "metadata": {}})
        flush()
        for start in range(0, len(data), LONGEST_PART):
            is_last = start + LONGEST_PART >= len(data)
            mark(b"." if is_last else b"-", data[start : start + LONGEST_PART])

    def result(kind, value, metadata=None):
        send({"type": "result", kind: value, "metadata": metadata or {}})

    kinds = ("png", "jpeg", "svg", "html", "json", "latex", "markdown", "javascript")
    types_of_kinds = {
        "image/png": "png",
        "image/jpeg": "jpeg",
        "image/svg+xml": "svg",
        "text/html": "html",
        "application/json": "json",
        "text/latex": "latex",
        "text/markdown": "markdown",
        "application/javascript": "javascript",
        "text/plain": "text",
    }

    def described(value, method, *arguments):
        try:
            made = getattr(value, method)(*arguments)
        except Exception:
            return None, None
        return made if isinstance(made, tuple) and len(made) == 2 else (made, None)

    def is_content(kind, content):
        return isinstance(content, (str, bytes, bytearray)) or (kind == "json" and content is not None)

    def formats(value):
        try:
            found = described_formats(value)
            return {kind: pair for kind, pair in found.items() if is_content(kind, pair[0])}
        except Exception:
            # An object that answers every attribute answers these, too.
            return {}

    def described_formats(value):
        found = {}
        if isinstance(value, type):
            return found
        if hasattr(value, "_repr_mimebundle_"):
            bundle, metadata = described(value, "_repr_mimebundle_", None, None)
            for name, content in (bundle if isinstance(bundle, dict) else {}).items():
                if name in types_of_kinds:
                    found[types_of_kinds[name]] = (content, (metadata or {}).get(name))
        for kind in kinds:
            method = f"_repr_{kind}_"
            if kind not in found and hasattr(value, method):
                content, metadata = described(value, method)
                if content is not None:
                    found[kind] = (content, metadata)
        return found

    def show(value):
        if isinstance(value, (dict, list)):
            try:
                return result("json", json.loads(json.dumps(value, allow_nan=False)))
            except (TypeError, ValueError, RecursionError):
                return result("text", repr(value))
        found = formats(value)
        shown = [kind for kind in kinds if kind in found]
        for kind in shown:
            content, metadata = found[kind]
            if kind == "json":
                try:
                    encode(content)
                except (TypeError, ValueError, RecursionError):
                    shown = []
                    break
            if isinstance(content, (bytes, bytearray)):
                content = base64.b64encode(content).decode()
            result(kind, content, metadata if isinstance(metadata, dict) else None)
        if not shown or "html" in shown:
            result("text", found["text"][0] if "text" in found else repr(value))

    def display(*values, **_):
        for value in values:
            show(value)

    builtins.display = display

    def show_figures():
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        import io

        for number in pyplot.get_fignums():
            picture = io.BytesIO()
            pyplot.figure(number).savefig(picture, format="png", bbox_inches="tight")
            result("png", base64.b64encode(picture.getvalue()).decode())
        pyplot.close("all")

    class TimeLimit(BaseException):
        pass

    TimeLimit.__name__ = TimeLimit.__qualname__ = "TimeoutError"
    TimeLimit.__module__ = "builtins"

    def begin_limit(milliseconds):
        def interrupt(*_):
            if state["running"]:
                raise TimeLimit(f"the code ran longer than {milliseconds} ms")

        seconds = milliseconds / 1000
        previous = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        # This needs nothing of the interpreter.
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=nothing)
        return previous

    def end_limit(previous):
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous if previous is not None else signal.SIG_DFL)

    def evaluate(compiled):
        value = eval(compiled, main.__dict__)
        if not compiled.co_flags & inspect.CO_COROUTINE:
            return value
        import asyncio

        if state["loop"] is None or state["loop"].is_closed():
            state["loop"] = asyncio.new_event_loop()
            asyncio.set_event_loop(state["loop"])
        return state["loop"].run_until_complete(value)

    def run(code):
        name = f"<run-{state['count']}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        linecache.cache.pop(f"<run-{state['count'] - MOST_SOURCES}>", None)
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        parts = [compile(tree, name, "exec", flags)]
        if last is not None:
            parts.append(compile(last, name, "eval", flags))
        value = None
        for part in parts:
            value = evaluate(part)
        return value if last is not None else None

    def lines_of(error):
        described = traceback.TracebackException.from_exception(error)
        own = [frame for frame in described.stack if frame.filename != DRIVER]
        described.stack = traceback.StackSummary.from_list(own)
        return list(described.format())

    def send_error(error):
        try:
            lines = lines_of(error)
        except BaseException:
            lines = [type(error).__name__]
        try:
            message = str(error)
        except BaseException:
            message = "its message cannot be made"
        send(
            {
                "type": "error",
                "ename": type(error).__name__,
                "evalue": message[:LONGEST_ERROR],
                "traceback": "".join(lines)[:LONGEST_ERROR].rstrip("\n").split("\n"),
            }
        )

    def carry_out(request):
        milliseconds = request.get("limit")
        previous = begin_limit(milliseconds) if milliseconds else None
        state["running"] = True
        try:
            try:
                value = run(request["code"])
                show_figures()
                if value is not None:
                    main._ = value
                    show(value)
            finally:
                state["running"] = False
        except BaseException as error:
            if os.getpid() == owner:
                if milliseconds:
                    end_limit(previous)
                    milliseconds = None
                try:
                    show_figures()
                except Exception:
                    pass
                send_error(error)
            return
        finally:
            if os.getpid() != owner:
                # A child that the code forked came back here.
                flush()
                os._exit(0)
            if milliseconds:
                end_limit(previous)
        send({"type": "execution_complete", "execution_count": state["count"]})

    def prepare():
        for name, descriptor in (("stdout", outputs[0]), ("stderr", outputs[1])):
            if getattr(getattr(sys, name, None), "closed", True):
                fresh = open(os.dup(descriptor), "w", encoding="utf-8", errors="backslashreplace")
                fresh.reconfigure(line_buffering=True)
                setattr(sys, name, fresh)

    def answer(token, request):
        state["token"] = token
        prepare()
        for descriptor in outputs:
            mark(b"(", descriptor=descriptor)
        if "code" in request:
            state["count"] += 1
            carry_out(request)
        else:
            send({"type": "ready", "typescript": False})
        flush()
        for descriptor in outputs:
            mark(b")", descriptor=descriptor)

    incomplete = {}
    while True:
        try:
            line = source.readline()
        except KeyboardInterrupt:
            continue
        if not line:
            break
        token, kind, part = line[:32], line[32:33], line[33:-1]
        whole = incomplete.pop(token, b"") + part
        if kind == b"-":
            incomplete[token] = whole
            while len(incomplete) > MOST_INCOMPLETE:
                incomplete.pop(next(iter(incomplete)))
            continue
        try:
            request = json.loads(whole)
        except ValueError:
            # Its beginning was dropped.
            continue
        try:
            answer(token, request)
        except KeyboardInterrupt:
            for descriptor in outputs:
                mark(b")", descriptor=descriptor)


serve()
