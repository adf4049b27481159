"""An allocator without a prefix cache that keeps to the protocol but for the way that its argument names."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

WAY = sys.argv[1]
FEATURES = ["lookahead", "ahead", "discards"]


class Plain:
    """A free list; the blocks of an ended life are free at once."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.size: int = config.get("block_size", 1)
        self.free = list(range(1, config.get("blocks", 0) + 1))
        self.limits: dict[str, int] = {}
        self.rows: dict[str, list[int]] = {}
        self.expected: dict[str, int] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        name = message.get("request", "")
        match message["op"]:
            case "submit":
                self.limits[name], self.expected[name] = message["limit"], len(message["tokens"])
                self.rows[name] = []
            case "admit" | "extend":
                row, lookahead = self.rows[name], message.get("lookahead", 0)
                slots = min(self.expected[name] + lookahead, self.limits[name])
                missing = max(0, -(-slots // self.size) - len(row))
                if missing > len(self.free):
                    return {"ok": False}
                self.expected[name] += self.expected[name] < self.limits[name]
                row += [self.free.pop(0) for _ in range(missing)]
                hit = {"hit": 0} if message["op"] == "admit" else {}
                return {"ok": True, "rows": [row], **hit}
            case "row":
                return {"ok": True, "row": self.rows[name]}
            case "finish":
                self.free += self.rows.pop(name)
        return {"ok": True}


def welcome() -> dict[str, Any]:
    can: dict[str, Any] = {"stream_ordered": True, "features": FEATURES, "operations": []}
    match WAY:
        case "declares-lookup":
            can["operations"] = ["lookup"]
        case "declares-level-2" | "declares-level-2-in-batches" | "observes-half":
            can["level"] = 2
            can["operations"] = ["batch"] if WAY.endswith("batches") else []
        case "declares-level-3":
            can["level"] = 3
        case "declares-magic":
            can["operations"] = ["magic"]
        case "declares-an-unknown-field":
            can["magic"] = True
    version = 2 if WAY == "wrong-version" else 1
    return {"ok": True, "version": version, "name": "fake", "capabilities": can}


def spoilt(op: str, reply: dict[str, Any]) -> dict[str, Any]:
    """The reply, wrong in content or shape."""
    match WAY, op:
        case "always-wrong", "admit":
            return {**reply, "rows": [[0] * len(reply["rows"][0])]}
        case "wrong-shape", "admit":
            return {**reply, "rows": reply["rows"][0]}
        case "answers-floats", "admit":
            return {**reply, "hit": 0.0}
        case "refuses-finish", "finish":
            return {"ok": False}
        case "reports-an-error", "finish":
            return {"ok": False, "error": "the free list is corrupt"}
        case "declares-lookup", "lookup":
            return {"ok": False, "error": "no such operation"}
        case (("declares-level-2" | "declares-level-2-in-batches"), "observe"):
            return {"ok": False, "error": "no such operation"}
        case "observes-half", "observe":
            return {"ok": True, "blocks": {}}
        case "refuses-configure", "configure":
            return {"ok": False, "error": "blocks of 2 tokens are too small"}
    return reply


def misbehave(op: str) -> bool:
    """What happens before an answer, where something does; whether it was the answer."""
    match WAY, op:
        case "dies-in-the-middle", "row":
            print("out of luck", file=sys.stderr)
            sys.exit(7)
        case "is-killed", "row":
            os.kill(os.getpid(), signal.SIGSEGV)
        case ("hangs", "row") | ("hangs-at-start", "hello"):
            time.sleep(60)
        case "floods-stdout", "row":
            while True:
                sys.stdout.write("x" * 65536)
        case "floods-lines", "row":
            while True:
                print('{"ok": true}')
        case "not-json", "row":
            print("Hello, world!", flush=True)
            return True
        case "speaks-twice", "submit":
            print('{"ok": true}', flush=True)
        case "speaks-late", "configure":
            print('{"ok": true}\n{"ok"', end="", flush=True)
            time.sleep(60)
        case "closes-stdout", "row":
            os.close(1)
            time.sleep(60)
        case "floods-stderr" | "floods-stderr-and-dies", _:
            sys.stderr.write("log\n" * 100_000)
            if WAY.endswith("dies") and op == "row":
                sys.exit(1)
        case "leaves-a-child", "hello":
            child = subprocess.Popen(["sleep", "60"])
            print("child", child.pid, file=sys.stderr, flush=True)
        case "leaves-a-child", "row":
            sys.exit(0)
    return False


def main() -> None:
    if WAY == "dies-at-start":
        sys.exit(3)
    if WAY == "speaks-first":
        print("fake allocator, version 1", flush=True)
        time.sleep(60)
    allocator = Plain({})
    for line in sys.stdin:
        message = json.loads(line)
        op = message["op"]
        if misbehave(op):
            continue
        if op == "configure":
            allocator = Plain(message)
        if op == "batch":
            replies = [spoilt(each["op"], allocator.answer(each)) for each in message["messages"]]
            reply: dict[str, Any] = {"ok": True, "replies": replies}
        else:
            reply = welcome() if op == "hello" else spoilt(op, allocator.answer(message))
        print(json.dumps(reply), flush=True)
        if WAY == "stops-reading" and op == "configure":
            time.sleep(60)
    if WAY == "ignores-the-end":
        time.sleep(60)


main()
