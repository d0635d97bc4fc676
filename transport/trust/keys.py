"""The join code of a mesh and the keys that follow from it, and the long-term key of a device.

A code is NAME:GROUPS, for example home:k7q2-9xvd-... : the mesh's name, 95 random bits in base32 without look-alikes
(no 0, 1, l, o), 60 bits of a hash of the founder's key, and one check character over all, so that a typo is noticed at
once. A mesh with a code of 20 characters, without a founder, has no owners: nobody can be locked out of it.

The code admits: every holder derives from it the same CURVE keys of the door (scrypt), and a key that signs the
enrolment of a device. A device without the code knows neither the door's public key nor a client key that is let in.
Between members each device has keys of its own: one secret of 32 bytes yields an Ed25519 key to sign with and a CURVE
key for links. The public half of the former is the device, in every mesh that it is a member of.

Words to read out to somebody: three of them stand for a code that is good once, for minutes.

512 words of four to six letters, each with its own first three. So a word is known before it is typed out, and no two
are confused. Three words are 27 bits. That is enough where each guess needs an exchange with the device that shows them
(`transport/trust/invitation.py`), and far too few for a code that could be tried out offline.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import zmq
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from zmq.utils import z85

from mdl.bounds import printable
from mdl.errors import ConfigError
from mdl.protocol.statements import Proof
from mdl.protocol.vocabulary import PeerInfo

_ALPHABET = "23456789abcdefghijkmnpqrstuvwxyz"
_RANDOM_CHARACTERS = 19
_FOUNDER_CHARACTERS = 12
_GROUP = 4
# Stands between a mesh's name and its run's.
RUN_MARK = "--"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,29}[a-z0-9])?")
# About 0.1 s and 32 MiB on a small computer; with 95 random bits no amount of guessing finds a code.
_SCRYPT_COST = 1 << 15
_SCRYPT_BLOCK = 8
_SCRYPT_MEMORY_BYTES = 64 << 20
# Public announcements are sealed with 60 bits that every code of the mesh has; each guess costs 10 ms.
_BEACON_COST = 1 << 12
_DERIVED_BYTES = 160
# From a parent process that has the code and its keys; as secret as the code.
DERIVED_VARIABLE = "MDL_DERIVED"
SECRET_BYTES = 32


def founder_mark(founder: bytes) -> str:
    """Return the characters of a join code for this founder. founder: the public key of its device, 32 bytes."""
    number = int.from_bytes(hashlib.blake2b(b"mdl founder 1" + founder, digest_size=8).digest(), "big")
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in range(_FOUNDER_CHARACTERS))


def new_join_code(name: str, random_bytes: bytes | None = None, mark: str = "") -> str:
    """Return a new code for the mesh `name`. random_bytes: at least 19, for tests; else from the system's generator.

    mark: the founder's; without one the mesh has no owners. Raises ConfigError if the name is invalid.
    """
    _check_name(name)
    chosen = secrets.token_bytes(_RANDOM_CHARACTERS) if random_bytes is None else random_bytes
    if len(chosen) < _RANDOM_CHARACTERS:
        raise ConfigError(f"join code: {len(chosen)} random bytes, {_RANDOM_CHARACTERS} are needed")
    digits = [byte % len(_ALPHABET) for byte in chosen[:_RANDOM_CHARACTERS]]
    digits += [_ALPHABET.index(character) for character in mark]
    text = "".join(_ALPHABET[digit] for digit in [*digits, _check_digit(name, digits)])
    return f"{name}:" + "-".join(text[start : start + _GROUP] for start in range(0, len(text), _GROUP))


def run_code(code: str, run: str) -> str:
    """Return the join code of a run of a mesh, as if it were a mesh of its own: NAME--RUN, with keys of its own.

    A holder of the mesh's code has the run's code, too; a holder of the run's code does not have the mesh's. Raises
    ConfigError if the run's name or the code is invalid.
    """
    name, text = parse_join_code(code)
    whole = name_run(name, run)
    # A hash, so that nobody gets from one run's code to another's.
    digits = hashlib.blake2b(f"mdl run 1:{whole}:{text}".encode(), digest_size=_RANDOM_CHARACTERS).digest()
    return new_join_code(whole, digits, mark_of(text))


def name_run(mesh: str, run: str) -> str:
    """Return the full name of a run of a mesh. Raises ConfigError if it is invalid."""
    if not _NAME.fullmatch(run) or RUN_MARK in run:
        raise ConfigError(f"run name {run!r}: use a-z, 0-9 and '-', for example gait or second-try")
    whole = f"{mesh}{RUN_MARK}{run}"
    _check_name(whole)
    return whole


def show_name(name: str) -> str:
    """Return a name of keys and folders as commands take it: "home--walk" as "home/walk"."""
    return name.replace(RUN_MARK, "/", 1)


def mark_of(text: str) -> str:
    """Return the founder's mark in a code's characters; empty for a mesh without owners."""
    return text[_RANDOM_CHARACTERS:-1]


def with_founder(code: str, mark: str) -> str:
    """Return the code of a mesh that had no founder until now. Raises ConfigError if it has one."""
    name, text = parse_join_code(code)
    if mark_of(text):
        raise ConfigError(f"mesh {name!r} has owners already: `mdl mesh owners {name}` shows them")
    digits = bytes(_ALPHABET.index(character) for character in text[:_RANDOM_CHARACTERS])
    return new_join_code(name, digits, mark)


def is_successor(text: str, former: str) -> bool:
    """Return True if a code's characters belong to a former code's mesh: by its founder, or by `with_founder`."""
    if mark_of(former):
        return mark_of(former) == mark_of(text)
    return text[:_RANDOM_CHARACTERS] == former[:_RANDOM_CHARACTERS]


def code_hash(code: str) -> bytes:
    """Return 16 bytes that identify the code that an owner speaks of, and tell nothing else of it."""
    name, text = parse_join_code(code)
    return hashlib.blake2b(f"mdl code 1:{name}:{text}".encode(), digest_size=16).digest()


def parse_join_code(code: str) -> tuple[str, str]:
    """Return (mesh name, the code's characters without dashes). Raises ConfigError that says what is wrong with it."""
    name, colon, groups = code.strip().lower().partition(":")
    if not colon:
        raise ConfigError("join code: no ':' in it; it looks like home:k7q2-9xvd-... (mdl mesh new NAME prints one)")
    _check_name(name)
    text = groups.replace("-", "").replace(" ", "")
    if wrong := sorted(set(text) - set(_ALPHABET)):
        raise ConfigError(f"join code of {name!r}: {wrong[0]!r} is never in a code (no 0, 1, l or o): a typo?")
    if len(text) not in (_RANDOM_CHARACTERS + 1, _RANDOM_CHARACTERS + _FOUNDER_CHARACTERS + 1):
        raise ConfigError(f"join code of {name!r}: {len(text)} characters after ':', there should be 32, or 20")
    digits = [_ALPHABET.index(character) for character in text]
    if _check_digit(name, digits[:-1]) != digits[-1]:
        raise ConfigError(f"join code of {name!r}: the check character does not fit: a typo in the name or the code")
    return name, text


@dataclass(frozen=True)
class MeshKeys:
    """The keys that every holder of the code derives from it.

    Keys are Z85 text (40 bytes); secrets stay out of repr and logs.

    mesh_id: named in statements about the mesh; the same for all its runs and codes, if it has a founder.
    code_hash: of the mesh's code, also where the keys are a run's.
    fingerprint: in public. mark: the founder's; empty without owners. admitting: signs enrolments.
    server, client: of the door.
    """

    name: str
    mesh_id: str
    mark: str
    fingerprint: str
    code_hash: bytes = field(repr=False)
    server_public: bytes = field(repr=False)
    server_secret: bytes = field(repr=False)
    client_public: bytes = field(repr=False)
    client_secret: bytes = field(repr=False)
    admitting: SigningKey = field(repr=False)
    beacon_key: bytes = field(repr=False)
    _proof_key: bytes = field(repr=False)
    _derived: bytes = field(repr=False)

    @classmethod
    def from_code(cls, code: str, run: str = "") -> MeshKeys:
        """Derive the keys of a mesh, or of a run of it; takes 0.1 to 0.3 s. Raises ConfigError if either is invalid."""
        whole_hash = code_hash(code)
        name, text = parse_join_code(run_code(code, run) if run else code)
        derived = _handed_over(whole_hash, name) or _scrypt(text, f"mdl mesh 1:{name}", _SCRYPT_COST, _DERIVED_BYTES)
        server_secret, client_secret = z85.encode(derived[:32]), z85.encode(derived[32:64])
        fingerprint, beacon_key, mesh_id = derived[96:104], derived[64:96], f"{name}:{derived[96:104].hex()}"
        if mark := mark_of(text):
            shown = _scrypt(mark, f"mdl beacon 1:{name}", _BEACON_COST, 40)
            fingerprint, beacon_key = shown[:8], shown[8:]
            mesh_id = f"{name.partition(RUN_MARK)[0]}:{mark}"
        return cls(
            name=name,
            mesh_id=mesh_id,
            mark=mark,
            fingerprint=fingerprint.hex(),
            code_hash=whole_hash,
            server_public=zmq.curve_public(server_secret),
            server_secret=server_secret,
            client_public=zmq.curve_public(client_secret),
            client_secret=client_secret,
            admitting=SigningKey.of(derived[128:160]),
            beacon_key=beacon_key,
            _proof_key=derived[64:96],
            _derived=derived,
        )

    def hand_over(self) -> str:
        """Return the value of DERIVED_VARIABLE for a child process that has the code, too, and need not derive them."""
        return f"{_tag(self.code_hash, self.name)}{self._derived.hex()}"

    @property
    def shown(self) -> str:
        """The name as commands take it: NAME, or NAME/RUN."""
        return show_name(self.name)

    def prove(self, statement: str) -> str:
        """Return 32 hex characters that only a holder of the code can write beside `statement` (HMAC-SHA256)."""
        return hmac.new(self._proof_key, statement.encode(), hashlib.sha256).hexdigest()[:32]

    def is_founder(self, device: bytes) -> bool:
        """Return True if this device made the mesh."""
        return bool(self.mark) and founder_mark(device) == self.mark


@dataclass(frozen=True)
class Mesh:
    """A mesh as its members know it: its name, and the keys that let them in. keys: None without encryption."""

    name: str
    keys: MeshKeys | None

    @property
    def shown(self) -> str:
        """The name as commands take it: NAME, or NAME/RUN."""
        return show_name(self.name)

    @classmethod
    def from_code(cls, code: str, run: str = "") -> Mesh:
        """Return the mesh of this code, or a run of it; takes about 0.1 s. Raises ConfigError if either is invalid."""
        keys = MeshKeys.from_code(code, run)
        return cls(keys.name, keys)


def _tag(whole_hash: bytes, name: str) -> str:
    return hashlib.blake2b(whole_hash + name.encode(), digest_size=16).hexdigest()


def _handed_over(whole_hash: bytes, name: str) -> bytes:
    """Return what the parent process has derived from this very code; b"" if it has handed nothing over."""
    told, tag = os.environ.get(DERIVED_VARIABLE, ""), _tag(whole_hash, name)
    return bytes.fromhex(told[len(tag) :]) if told.startswith(tag) else b""


def _scrypt(text: str, salt: str, cost: int, size: int) -> bytes:
    return hashlib.scrypt(
        text.encode(),
        salt=salt.encode(),
        n=cost,
        r=_SCRYPT_BLOCK,
        p=1,
        maxmem=_SCRYPT_MEMORY_BYTES,
        dklen=size,
    )


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"mesh name {name!r}: use 1 to 31 of a-z, 0-9 and '-', for example home or lab-2")


def _check_digit(name: str, digits: list[int]) -> int:
    """Compute Luhn's check digit in base 32: it reveals every single wrong character, and 31 of 32 wrong names."""
    base = len(_ALPHABET)
    total = zlib.crc32(name.encode()) % base
    for place, digit in enumerate(reversed(digits)):
        doubled = digit * 2 if place % 2 == 0 else digit
        total += doubled // base + doubled % base
    return -total % base


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key. public: 32 bytes."""

    public: bytes
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def of(cls, seed: bytes) -> SigningKey:
        """Derive the key from a seed of 32 bytes."""
        private = Ed25519PrivateKey.from_private_bytes(seed)
        return cls(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), private)

    def sign(self, claim: bytes) -> bytes:
        return self._private.sign(claim)


@dataclass(frozen=True)
class DeviceKey:
    """The keys of a device. curve_public, curve_secret: Z85 text (40 bytes)."""

    signing: SigningKey
    curve_public: bytes
    curve_secret: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> DeviceKey:
        """Derive the keys from this secret. Raises ConfigError unless it has 32 bytes."""
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"device key: {len(secret)} bytes, it has {SECRET_BYTES}")
        curve_secret = z85.encode(_derive(secret, b"curve"))
        return cls(SigningKey.of(_derive(secret, b"sign")), zmq.curve_public(curve_secret), curve_secret)

    @property
    def public(self) -> bytes:
        """The public key that stands for the device: 32 bytes."""
        return self.signing.public

    def mark(self, challenge: bytes, incarnation: int) -> bytes:
        """Return 16 bytes that only this start of this device can make of a challenge."""
        key = _derive(z85.decode(self.curve_secret), b"mark")
        return hashlib.blake2b(challenge + incarnation.to_bytes(8, "big"), key=key, digest_size=16).digest()

    def seal(self, content: bytes) -> bytes:
        """Return 32 bytes that only this device can make of content that it keeps."""
        key = _derive(z85.decode(self.curve_secret), b"kept")
        return hashlib.blake2b(content, key=key, digest_size=32).digest()

    @property
    def link_key(self) -> bytes:
        """The key that its connections show: 32 bytes."""
        return z85.decode(self.curve_public)


def is_signed(public: bytes, claim: bytes, signature: bytes) -> bool:
    """Return True if the secret of this Ed25519 key (32 bytes) has signed the claim."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, claim)
    except (InvalidSignature, ValueError):
        return False
    return True


def where_claim(mesh_id: str, info: PeerInfo, proof: Proof) -> bytes:
    """Return the bytes that a device signs to state the address of one of its peers."""
    said = (mesh_id, info.peer_id, info.incarnation, info.role, info.port, info.schema_hash)
    return b"mdl where 1\0" + msgspec.msgpack.encode((said, proof.link_port, proof.hosts, proof.serial))


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(b"mdl device", key=secret, person=purpose, digest_size=32).digest()


COUNT = 3
# Forging a key with the same words as another takes some 10^13 keys.
_FINGERPRINT = 5
# The first letters that tell the words apart.
_ENOUGH = 3
# Characters of a peer's name, and those of them reserved for the number of a second peer of the same machine.
LONGEST_NAME = 40
_NUMBER = 4
_LISTED = """
able acid acorn actor adult after agent alarm album alley amber anchor angle ankle answer apple april arch arena arrow
artist atlas attic aunt autumn award baby back badge bagel baker ball banana barn basket bath beach bell bench berry
bird black blue boat body bold bone book born bottle bowl bread brick broom brush bubble bucket build butter cabin
cactus cake camel candle castle cave cedar chair cheese chief circle city clay clean cliff clock coach cocoa coffee
coin cold comb cook copper corn cotton cousin crab cream crow cube cycle dairy dance data delta desk diary dice dinner
dish dive doctor doll donkey door double dove dozen dragon dream drum duck duty eager east echo edge eight elbow elder
empty energy engine enter escape exam exit extra fabric face fall family farm fast father fence fern fiber field film
final fire fish five flag flute folder food forest frame fresh frog fruit fuel full funny future game garden gate
gentle ghost giant gift ginger girl give glad globe glue goal gold good grape green grow guard guest guitar habit
hammer hand happy harbor hawk hazel head hedge hello herb hill hint hobby hockey honey hook horse hotel house huge
hurry icon idea igloo image inch index inner insect iron island item ivory jacket jaguar jazz jelly jewel joke jolly
judge juice july jump jungle kayak keep kettle kind kite knife koala label ladder lake lamp land large laser latin
laugh lawn layer lemon lens letter level life light linen lion liquid listen little lizard local logic long lucky lunch
magic major mango maple march mask match medal melon memory menu metal middle milk mind mirror mist model moment money
moon moth mouse movie muffin museum nail name napkin narrow nation navy near neck needle nephew nest nice night nine
noble north nose novel number nurse oasis object ocean office olive omelet onion open orange orbit organ otter outer
oven owner oxygen oyster pack paddle page paint palace panda paper parrot pasta path peach pebble pencil people pepper
phone piano picnic pilot pine pipe pirate pizza place plum pocket poem polar pond pool port postal potato powder prince
public pull pump puppy purple puzzle quail queen quick rabbit race radio raft ranch rapid raven razor ready reef rice
ride ring ripe river road robin rocket roof rose round royal rubber rule runner rural saddle safe salad sand satin
scarf school second seed seven shade shelf ship shoe sign silver simple sister size skate sleep slow small smile snail
snow soap sock sofa soil solar song soup spoon square stamp stone straw sugar suit summer swan sweet symbol syrup table
talent tango tape task taxi temple three thumb ticket tiger timber tiny title toast today tomato tool torch tower train
tree tribe truck tube tulip tunnel turtle twelve twin uncle under urban useful valley vase velvet vessel video view
violin visit vivid voice vote wagon waiter walnut warm water wave well west whale wheat wide wild window wise wolf
wonder wood word wrist yard yellow yogurt young zebra zero zigzag zipper zone
"""
WORDS = tuple(_LISTED.split())
_BY_BEGINNING = {word[:_ENOUGH]: word for word in WORDS}


def fingerprint(device: bytes) -> str:
    """Return a device's key in words that two people can compare: 45 bits of a hash of it. device: 32 bytes."""
    number = int.from_bytes(hashlib.blake2b(b"mdl fingerprint 1" + device, digest_size=8).digest(), "big")
    return "-".join(WORDS[number >> 9 * place & 511] for place in range(_FINGERPRINT))


def own_names(name: str, device: bytes) -> list[str]:
    """Return the names that a device takes in turn if this one is taken: with words of its key appended."""
    words = fingerprint(device).split("-")
    ends = ["-" + "-".join(words[: count + 1]) for count in range(len(words))]
    return [name[: LONGEST_NAME - _NUMBER - len(end)].strip("-") + end for end in ends]


def next_own_name(name: str, device: bytes) -> str:
    """Return the name after this one, which may be one of `own_names` itself; "" after the last."""
    words = fingerprint(device).split("-")
    for count in range(len(words), 0, -1):
        base = name.removesuffix("-" + "-".join(words[:count]))
        if base != name:
            return own_names(base, device)[count] if count < len(words) else ""
    return own_names(name, device)[0]


def is_fingerprint(text: str) -> bool:
    """Return True if `fingerprint` could return this text."""
    words = text.split("-")
    return len(words) == _FINGERPRINT and all(word in WORDS for word in words)


def draw_words(below: Callable[[int], int] = secrets.randbelow) -> str:
    """Return COUNT random words, separated by spaces. below: returns a random number from 0 to below its argument."""
    return " ".join(WORDS[below(len(WORDS))] for _ in range(COUNT))


def parse_words(text: str) -> str:
    """Return the words as `draw_words` writes them; given in any case, with dashes, or cut after three letters.

    Raises ConfigError that names what is no word of the list.
    """
    given = text.lower().replace("-", " ").replace(",", " ").split()
    if len(given) != COUNT:
        raise ConfigError(f"{len(given)} words: an invitation has {COUNT}, for example 'maple otter violin'")
    found = [_BY_BEGINNING.get(word[:_ENOUGH], "") for word in given]
    for word, meant in zip(given, found, strict=True):
        if not meant or not meant.startswith(word):
            near = f"; is it {meant!r}?" if meant else ""
            raise ConfigError(f"'{printable(word, 40)}' is in no invitation{near}: a typo?")
    return " ".join(found)
