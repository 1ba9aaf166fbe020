"""Users, processes and deadlines of the attacks."""

# Modules that python loads when it needs them, which other users cannot where its folder is root's own.
import encodings.idna  # noqa: F401
import json
import os
import re
import signal
import subprocess
import time
import traceback

STILLWIRE = "/mnt/stillwire"

# An honest user, one who means harm, and a bystander whom nobody serves.
HONEST, MALLORY, STRANGER = 65532, 65533, 65531

# Folders of the honest user, who alone may enter them.
RUNTIME, OWN = "/run/honest", "/tmp/honest"

# Within this the honest user is served, whatever others do.
SERVED_WITHIN = 2.0


class Failed(Exception):
    """An attack that was not refused, or that held up somebody."""


def expect(holds, words):
    if not holds:
        raise Failed(words)


class Attacks:
    """The attacks of a section, by the sentence that says what is refused."""

    def __init__(self):
        self.all = []

    def __call__(self, sentence):
        def register(function):
            self.all.append((sentence, function))
            return function

        return register


def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.environ.clear()
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME="/nonexistent", LANG="C.UTF-8")


class User:
    """A process of another user that runs one function, and keeps what that has opened until it is ended."""

    def __init__(self, uid, function, *arguments, before=None):
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            try:
                if before:
                    before()
                become(uid)
                result = {"result": function(*arguments)}
            except BaseException as error:  # noqa: B036 whatever it is, it is the parent's to say
                result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            os.write(writing, json.dumps(result).encode())
            os.close(writing)
            signal.pause()
        os.close(writing)
        self.reading = reading

    def result(self, seconds=20):
        """What the function has returned."""
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            text = b""
            while part := os.read(self.reading, 65536):
                text += part
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        result = json.loads(text or b'{"error": "it has ended"}')
        if "error" in result:
            raise Failed(result["error"] + "\n" + result.get("trace", ""))
        return result["result"]

    def end(self):
        os.close(self.reading)
        os.kill(self.pid, signal.SIGKILL)
        # One whose own files never close ends when their server has.
        end = time.monotonic() + 1
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(0.005)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def _late(*_):
    raise Failed("it has not returned in time")


def as_user(uid, function, *arguments, before=None):
    """Runs a function as that user, to its end."""
    with User(uid, function, *arguments, before=before) as user:
        return user.result()


class Program:
    """A process whose output is collected in a file."""

    def __init__(self, *words, uid=None, environment=None):
        self.path = f"/tmp/output-{time.monotonic_ns()}"
        self.file = open(self.path, "w+", encoding="utf-8")
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", **(environment or {})}
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.STDOUT, env=environment,
            preexec_fn=None if uid is None else lambda: become(uid), cwd="/tmp",
        )

    def said(self):
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def wait_for(self, words, seconds=20):
        """Until its output matches."""
        end = time.monotonic() + seconds
        while not re.search(words, self.said()):
            expect(self.process.poll() is None, f"it has ended before it said '{words}':\n{self.said()}")
            expect(time.monotonic() < end, f"it has not said '{words}' in {seconds} s:\n{self.said()}")
            time.sleep(0.02)

    def finish(self, seconds=20):
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"it has not ended in {seconds} s:\n{self.said()}") from None

    def end(self, how=signal.SIGTERM, seconds=10):
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.finish(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.file.close()
            os.unlink(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def until(words, holds, seconds=10):
    end = time.monotonic() + seconds
    while not holds():
        expect(time.monotonic() < end, f"not in {seconds} s: {words}")
        time.sleep(0.02)


def prepare():
    for folder in (RUNTIME, OWN):
        os.makedirs(folder, exist_ok=True)
        os.chown(folder, HONEST, HONEST)
        os.chmod(folder, 0o700)


def honest(*words, runtime=RUNTIME, **environment):
    """A command of the honest user."""
    prepare()
    if runtime:
        environment["XDG_RUNTIME_DIR"] = runtime
    return Program(STILLWIRE, *words, uid=HONEST, environment=environment)
