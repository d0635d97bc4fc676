"""Words to read out to somebody: three of them stand for a code that is good once, for minutes.

512 words of four to six letters, each with its own first three. So a word is known before it is typed out, and no two
are confused. Three words are 27 bits. That is enough where each guess needs an exchange with the device that shows them
(`transport/trust/invitation.py`), and far too few for a code that could be tried out offline.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from mdl.bounds import printable
from mdl.errors import ConfigError

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
