"""Table of the functions and audit events that are guarded while a script is tried, each with its rule.

A guarded function is replaced by one that uses another path. An audit event is reported
before its action, whatever code does it (PEP 578); a refused action does not happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Way(Enum):
    """Treatment of the path in a call of a guarded file function: which other path replaces it."""

    READ = auto()  # the path of the script's copy, if there is one
    LOOK = auto()  # likewise, but links that the script made are not followed
    CHANGE = auto()  # the path of a copy of the existing file
    REPLACE = auto()  # the path of a new file
    FILL = auto()  # a folder whose files then appear in the given one


@dataclass(frozen=True, slots=True)
class Call:
    """Guarded library function that opens or inspects a file without Python's `open`.

    Attributes:
        module: the function's module, which the script may import later.
        name: name in the module; for a method with its class.
        position: position of the path among the arguments.
        keyword: keyword by which the path may be passed.
        default: path that is used if none is passed.
    """

    module: str
    name: str
    way: Way
    position: int = 0
    keyword: str = "path"
    default: str | None = None


_TRACE = "export_chrome_trace"
CALLS = (
    *(Call("os", name, Way.READ) for name in ("stat", "access", "chmod", "chown", "lchown", "utime")),
    *(Call("os", name, Way.LOOK) for name in ("lstat", "readlink")),
    *(Call("os", f"{name}xattr", Way.READ) for name in ("get", "list", "set", "remove")),
    Call("os", "truncate", Way.CHANGE),
    Call("os", "mkfifo", Way.REPLACE),
    Call("os", "mknod", Way.REPLACE),
    Call("readline", "read_history_file", Way.READ, default="~/.history"),
    Call("readline", "write_history_file", Way.REPLACE, default="~/.history"),
    Call("readline", "append_history_file", Way.CHANGE, 1, default="~/.history"),
    Call("sqlite3", "connect", Way.CHANGE, keyword="database"),
    Call("sqlite3.dbapi2", "connect", Way.CHANGE, keyword="database"),
    Call("torch", "from_file", Way.CHANGE, keyword="filename"),
    Call("torch", "UntypedStorage.from_file", Way.CHANGE, keyword="filename"),
    Call("torch._C", "PyTorchFileWriter.__init__", Way.REPLACE, 1),
    Call("torch._C", "PyTorchFileReader.__init__", Way.READ, 1),
    Call("torch.jit", "save", Way.REPLACE, 1, "f"),
    Call("torch.jit", "load", Way.READ, 0, "f"),
    Call("torch.jit", "RecursiveScriptModule.save", Way.REPLACE, 1, "f"),
    Call("torch.autograd.profiler", f"profile.{_TRACE}", Way.REPLACE, 1),
    Call("torch.profiler", f"_KinetoProfile.{_TRACE}", Way.REPLACE, 1),
    Call("torch.profiler", "ExecutionTraceObserver.register_callback", Way.REPLACE, 1, "output_file_path"),
    Call("tokenizers", "Tokenizer.save", Way.REPLACE, 1),
    Call("tokenizers", "Tokenizer.from_file", Way.READ),
    Call("tokenizers.models", "Model.save", Way.FILL, 1, "folder"),
    *(
        Call(module, "serialize_file", Way.REPLACE, 1, "filename")
        for module in ("safetensors", "safetensors.numpy", "safetensors.flax", "safetensors.tensorflow")
    ),
)


class Rule(Enum):
    """Condition under which an action that Python reports as an audit event is allowed."""

    OPENED = auto()  # a file that is opened for writing is the script's
    CHANGED = auto()  # the existing file is the script's
    MADE = auto()  # the new file is noted
    DATABASE = auto()  # as CHANGED, for a file name or a URI of SQLite
    STARTED = auto()  # the command only reads information
    SHELL = auto()  # likewise, for a line of a shell
    FORKED = auto()  # never met
    SIGNALLED = auto()  # the process is this one or a descendant
    CONNECTED = auto()  # the other end is in this process
    RESOLVED = auto()  # the name is this machine's
    BOUND = auto()  # never refused; the port is noted, as this process may connect to it


@dataclass(frozen=True, slots=True)
class Event:
    """Action that Python reports to audit hooks, with the rule that allows or refuses it.

    Attributes:
        rule: condition under which the action is allowed.
        places: positions, among the event's arguments, of the subject and of one further argument, or None.
            The subject is a path, a command, a process or a socket. The further argument is the descriptor of
            the folder that a path is relative to, the flags of opening, a command's program, the number of a
            signal, or the address for a socket.
    """

    rule: Rule
    places: tuple[tuple[int, int | None], ...] = ((0, None),)


EVENTS: dict[str, tuple[Event, ...]] = {
    "open": (Event(Rule.OPENED, ((0, 2),)),),
    "os.remove": (Event(Rule.CHANGED, ((0, 1),)),),
    "os.rmdir": (Event(Rule.CHANGED, ((0, 1),)),),
    "shutil.rmtree": (Event(Rule.CHANGED),),
    "os.rename": (Event(Rule.CHANGED, ((0, 2), (1, 3))),),
    "os.link": (Event(Rule.CHANGED, ((0, 2),)), Event(Rule.MADE, ((1, 3),))),
    "os.truncate": (Event(Rule.CHANGED),),
    "os.chmod": (Event(Rule.CHANGED, ((0, 2),)),),
    "os.chown": (Event(Rule.CHANGED, ((0, 3),)),),
    "os.chflags": (Event(Rule.CHANGED),),
    "os.utime": (Event(Rule.CHANGED, ((0, 3),)),),
    "os.setxattr": (Event(Rule.CHANGED),),
    "os.removexattr": (Event(Rule.CHANGED),),
    "os.mkdir": (Event(Rule.MADE, ((0, 2),)),),
    "os.symlink": (Event(Rule.MADE, ((1, 2),)),),
    "sqlite3.connect": (Event(Rule.DATABASE),),
    "subprocess.Popen": (Event(Rule.STARTED, ((1, 0),)),),
    "os.posix_spawn": (Event(Rule.STARTED, ((1, 0),)),),
    "os.system": (Event(Rule.SHELL),),
    "os.exec": (Event(Rule.FORKED, ((1, None),)),),
    "pty.spawn": (Event(Rule.FORKED),),
    "os.fork": (Event(Rule.FORKED, ()),),
    "os.forkpty": (Event(Rule.FORKED, ()),),
    "os.kill": (Event(Rule.SIGNALLED, ((0, 1),)),),
    "os.killpg": (Event(Rule.SIGNALLED, ((0, 1),)),),
    "socket.connect": (Event(Rule.CONNECTED, ((1, 0),)),),
    "socket.sendto": (Event(Rule.CONNECTED, ((1, 0),)),),
    "socket.sendmsg": (Event(Rule.CONNECTED, ((1, 0),)),),
    "socket.bind": (Event(Rule.BOUND),),
    "socket.getaddrinfo": (Event(Rule.RESOLVED),),
    "socket.gethostbyname": (Event(Rule.RESOLVED),),
    "socket.gethostbyaddr": (Event(Rule.RESOLVED),),
    "socket.getnameinfo": (Event(Rule.RESOLVED),),
}
