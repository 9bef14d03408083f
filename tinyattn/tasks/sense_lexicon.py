"""The words that the sense generator speaks with: ambiguous words, the fields of life that their senses belong to, and
the nouns of each field that give a sense away.

The sense bank.river belongs to the field "water": any noun of that field beside a bank makes it a river's. Each field
serves several words, so that a noun never seen beside one of them has been seen beside another.
"""

FIELDS = {
    "water": "river stream lake shore ferry canoe waves reeds dam harbour pond boat",
    "money": "street cashier loan cheque wallet coins clerk purse debt savings safe market",
    "sport": "player stadium referee trainer trophy goalkeeper ball team umpire racket captain helmet",
    "animals": "paw fur feather nest tail owl fox zoo kitten claws stable hedgehog",
    "plants": "oak leaves roots branch garden moss forest blossom meadow hedge gardener soil",
    "music": "piano guitar singer choir violin concert melody flute orchestra song trumpet conductor",
    "tools": "hammer screw drill pliers ladder workshop sandpaper plank chisel wrench carpenter toolbox",
    "body": "finger skin doctor elbow wrist nurse shoulder blood bone thumb hospital bandage",
    "kitchen": "butter toast spoon oven soup cake breakfast sugar kettle cook recipe saucepan",
    "computers": "keyboard screen laptop printer software modem password website programmer cursor robot email",
    "machines": "engine gear piston wheel factory mechanic valve motor clock mattress axle turbine",
    "weather": "storm thunder clouds rain fog snow hail sky breeze rainbow moon frost",
    "building": "roof cement bricks tower builder scaffold beam concrete gravel architect crowbar skyscraper",
    "travel": "suitcase passport airport hotel luggage tourist backpack pilot island porter cruise map",
    "letters": "envelope wax parchment signature postman lawyer contract ink diary secretary treaty stationery",
    "fire": "candle stove flame smoke lantern fireplace cigar ashes torch fireman chimney campfire",
    "seasons": "summer winter april calendar autumn easter month holiday january solstice weekend harvest",
    "traffic": "car lorry motorway driver bus cyclist crossroads tunnel taxi pedestrian roundabout tram",
    "stage": "actor theatre curtain film audience ballet director costume comedy playwright script applause",
    "jewels": "bride diamond necklace gold bracelet pearl wedding silver emerald groom crown brooch",
}
FIELDS = {name: tuple(nouns.split()) for name, nouns in FIELDS.items()}

SENSES = {  # word: {sense: field}
    "band": {"jewel": "jewels", "musicians": "music"},
    "bank": {"money": "money", "river": "water"},
    "bark": {"dog": "animals", "tree": "plants"},
    "bass": {"fish": "water", "voice": "music"},
    "bat": {"animal": "animals", "club": "sport"},
    "bill": {"beak": "animals", "invoice": "money"},
    "bolt": {"lightning": "weather", "screw": "tools"},
    "bulb": {"lamp": "fire", "tulip": "plants"},
    "cast": {"actors": "stage", "plaster": "body"},
    "chip": {"electronic": "computers", "potato": "kitchen"},
    "coach": {"bus": "traffic", "trainer": "sport"},
    "crane": {"bird": "animals", "hoist": "building"},
    "date": {"fruit": "kitchen", "day": "seasons"},
    "fall": {"autumn": "seasons", "tumble": "body"},
    "fan": {"blower": "machines", "supporter": "sport"},
    "file": {"document": "computers", "rasp": "tools"},
    "jam": {"cars": "traffic", "fruit": "kitchen"},
    "key": {"computer": "computers", "door": "building", "tone": "music"},
    "match": {"flame": "fire", "game": "sport"},
    "mint": {"coinage": "money", "herb": "kitchen"},
    "mouse": {"animal": "animals", "pointer": "computers"},
    "nail": {"finger": "body", "metal": "tools"},
    "note": {"letter": "letters", "money": "money", "sound": "music"},
    "organ": {"body": "body", "pipes": "music"},
    "palm": {"hand": "body", "tree": "plants"},
    "pipe": {"plumbing": "building", "tobacco": "fire"},
    "pitch": {"field": "sport", "tone": "music"},
    "plane": {"aircraft": "travel", "carpentry": "tools"},
    "plant": {"factory": "machines", "flower": "plants"},
    "port": {"harbour": "water", "socket": "computers"},
    "ring": {"boxing": "sport", "jewel": "jewels"},
    "scale": {"notes": "music", "weighing": "kitchen", "fish": "water"},
    "seal": {"animal": "water", "stamp": "letters"},
    "spring": {"coil": "machines", "season": "seasons", "source": "water"},
    "stamp": {"postage": "letters", "rubber": "travel"},
    "star": {"actor": "stage", "sky": "weather"},
    "stock": {"shares": "money", "soup": "kitchen"},
    "track": {"rails": "traffic", "song": "music"},
    "trunk": {"animal": "animals", "case": "travel", "tree": "plants"},
}

CROSSED = {"river", "stream", "street", "market", "garden", "forest", "meadow", "stadium", "motorway", "crossroads",
           "tunnel", "roundabout"}  # what one can cross

# Frames by form: {o} an opening of any length, so that no place in the sentence tells by itself; {w} the ambiguous
# word, {n} the noun that counts, {f} the one that does not, {p} and {q} who, {v} and {d} what they do, {a} what ties a
# noun to the word, {t} when.
FRAMES = {
    "near after": [
        "{o} {q} {d} the {f} {t} , and then {p} {v} the {w} {a} the {n}",
        "{o} {q} {d} the {f} , but {p} {v} the {w} {t} {a} the {n}",
        "{o} although {q} {d} the {f} , {p} {v} the {w} {a} the {n} {t}"],
    "near before": [
        "{o} {a} the {n} {p} {v} the {w} , and {t} {q} {d} the {f}",
        "{o} {a} the {n} {t} {p} {v} the {w} , but {q} {d} the {f}",
        "{o} {a} the {n} {p} {v} the {w} {t} , while {q} {d} the {f}"],
    "both before": [
        "{o} {q} {d} the {f} , and {a} the {n} {p} {v} the {w} {t}",
        "{o} although {q} {d} the {f} {t} , {a} the {n} {p} {v} the {w}"],
    "both after": [
        "{o} {p} {v} the {w} {a} the {n} , and {t} {q} {d} the {f}",
        "{o} {p} {v} the {w} {a} the {n} , but {q} {d} the {f} {t}"],
    "simple": [
        "{o} {p} {v} the {w} {a} the {n} {t}",
        "{o} {a} the {n} {p} {v} the {w} {t}",
        "{o} {p} arrived at the {w} {t} after {c} the {n}",
        "{p} arrived at the {w} after {c} the {n}"],
}
OPENING = ["", "once", "of course", "as you know", "to tell the truth", "in those days , they say",
           "as far as anybody can tell", "on the first cold morning of may"]
WHO = ["i", "she", "he", "we", "they", "anna", "peter", "my brother", "our teacher"]
DID = ["saw", "noticed", "liked", "remembered", "described", "found", "looked at", "asked about", "thought of"]
FAR = ["forgot", "mentioned", "avoided", "missed", "read about", "dreamt of", "talked about", "heard of"]
TIED = ["beside", "near", "behind", "by", "next to", "close to", "along with"]
WHEN = ["", "", "yesterday", "later", "again", "quietly", "at noon", "that evening"]
REACHED = ["seeing", "finding", "leaving", "passing"]
LONGEST, SHORTEST = 20, 8  # words of a sentence, without commas
