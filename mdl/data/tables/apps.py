"""Knows the files of apps and loggers: our names of their columns, their units, and their times.

A table of data. Names here: acc is acceleration with gravity, lin without it, gyro the angular rate, mag the magnetic
field. The first matching rule takes the name: no two columns of a file get one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """column: a pattern of the column's name without its unit; its group, an axis, goes into `name`.

    unit: used if the header has none. file: a pattern in the file's name. quantity: the one that the header's unit has.
    """

    column: str
    name: str
    unit: str = ""
    file: str = ""
    quantity: str = ""


@dataclass(frozen=True)
class AppFormat:
    """mark: a pattern of the lines down to the header, in lower case; for a file without a header of its first lines.

    names: of the columns if there is no header. above: lines that are no rows, though they hold numbers.
    clock: a pattern of the lines above the values with groups `start` (UNIX seconds) and `rate` (Hz), which stand for a
    column of times. row_end: ends a row besides the line.
    exports: files, in lower case, of a folder or zip that is one recording of this app.
    """

    name: str
    mark: str
    rules: tuple[Rule, ...]
    names: tuple[str, ...] = ()
    above: int = 0
    clock: str = ""
    row_end: str = ""
    exports: tuple[str, ...] = ()


# The names of sensors, or of their quantities, in phyphox's languages; its units are the same in all of them.
_TIME = "time|zeit|temps|tiempo|tempo|tijd|czas|čas|время|χρόνο[ςσ]|zaman|vreme|thời gian|時間|时间"
_ACCELERATION = (
    "acceleration|accelerometer|beschleunigung|accélération(?: selon)?|aceleración|acelerómetro|accelerazione|"
    "aceleração|acelerômetro|versnelling|przyspieszenie|akcelerometr(?: - składowa)?|zrychlení|ускорение|акселерометр|"
    "επιτάχυνση|επιταχυνσιόμετρο|ivme|ivmelenme|ivmeölçer|ubrzanje|gia tốc|gia tốc kế|加速度?|加速度計"
)
_LINEAR = (
    "linear acceleration|linear accelerometer|lineare beschleunigung|accélération linéaire|aceleración lineal|"
    "accelerazione lineare|aceleração linear|lineaire versnelling|przyspieszenie liniowe|lineární zrychlení"
)
_GYROSCOPE = (
    "gyroscope(?: axe)?|gyroskop|giroscopio|giroscópio|gyroscoop|żyroskop(?: - składowa)?|гироскоп|γυροσκόπιο|jiroskop|"
    "žiroskop|con quay hồi chuyển|ジャイロスコープ"
)
_MAGNETIC = (
    "magnetic field|magnetometer|magnetfeld|champ magnétique|campo magnético|campo magnetico|magnetisch veld|"
    "pole magnetyczne|magnetické pole"
)
_AXIS = "([xyz])"

APPS = (
    AppFormat(
        "Empatica E4",
        r"^1\d{9}(\.\d+)?(, *1\d{9}(\.\d+)?)*\n\d{1,3}(\.\d+)?(, *\d{1,3}(\.\d+)?)*\n",
        (
            Rule(_AXIS, "acc_{}", "g/64", file="^acc"),
            Rule("x", "bvp", file="^bvp"),
            Rule("x", "eda", file="^eda"),
            Rule("x", "temperature", "degC", file="^temp"),
            Rule("x", "heart_rate", file="^hr"),
        ),
        names=("x", "y", "z"),
        above=2,
        clock=r"^(?P<start>[\d.]+).*\n(?P<rate>[\d.]+)",
        exports=("acc.csv", "info.txt"),
    ),
    AppFormat(
        "WISDM",
        r"^\d{1,6},[a-z]+,\d{6,},([^,;\n]+,){2}[^,;\n]+,?;",
        (Rule(_AXIS, "gyro_{}", "rad/s", file="gyro"), Rule(_AXIS, "acc_{}", "m/s2")),
        names=("user", "activity", "timestamp", "x", "y", "z"),
        row_end=";",
    ),
    AppFormat(
        "ActiGraph",
        r"data file created by actigraph",
        (
            Rule(f"accelerometer {_AXIS}", "acc_{}", "g"),
            Rule(f"gyroscope {_AXIS}", "gyro_{}", "deg/s"),
            Rule(f"magnetometer {_AXIS}", "mag_{}", "uT"),
            Rule("temperature", "temperature", "degC"),
        ),
        names=("Accelerometer X", "Accelerometer Y", "Accelerometer Z"),
        clock=r"\bat (?P<rate>\d+) hz\b",
    ),
    AppFormat(
        "phyphox",
        rf"(?m)^({_TIME}) \(s\)$",
        (
            Rule(f"(?:{_LINEAR}) {_AXIS}", "lin_{}", "m/s2"),
            Rule(f"(?:{_ACCELERATION}) {_AXIS}", "acc_{}", "m/s2"),
            Rule(f"(?:{_GYROSCOPE}) {_AXIS}", "gyro_{}", "rad/s"),
            Rule(f"(?:{_MAGNETIC}) {_AXIS}", "mag_{}", "uT"),
            # A simple experiment of several sensors has a file for each.
            Rule(_AXIS, "lin_{}", file="linear", quantity="acceleration"),
            Rule(_AXIS, "acc_{}", quantity="acceleration"),
            Rule(_AXIS, "gyro_{}", quantity="angular rate"),
            Rule(_AXIS, "mag_{}", quantity="magnetic field"),
        ),
        exports=("meta/device.csv", "meta/time.csv"),
    ),
    AppFormat(
        "Sensor Logger",
        r"(?m)^seconds_elapsed$",
        (
            Rule(_AXIS, "lin_{}", "m/s2", file="^accelerometer$"),
            Rule(_AXIS, "acc_{}", "m/s2", file="^totalacceleration$"),
            # In g on one system, in m/s2 on the other: the values tell.
            Rule(_AXIS, "acc_{}", file="^accelerometeruncalibrated$"),
            Rule(_AXIS, "gravity_{}", "m/s2", file="^gravity$"),
            Rule(_AXIS, "gyro_{}", "rad/s", file="^gyroscope$"),
            Rule(_AXIS, "mag_{}", "uT", file="^magnetometer$"),
            Rule("(roll|pitch|yaw)", "{}", "rad", file="^orientation$"),
            Rule("pressure", "pressure", "hPa", file="^barometer$"),
            Rule("bpm", "heart_rate", file="^heartrate$"),
            Rule(f"acceleration{_AXIS}", "wrist_lin_{}", file="^wristmotion$"),
            Rule(f"rotationrate{_AXIS}", "wrist_gyro_{}", "rad/s", file="^wristmotion$"),
        ),
        exports=("metadata.csv",),
    ),
    AppFormat(
        "Physics Toolbox",
        r"(?m)^(gfx|tgf|wx|bx|at \(m/s\^2\))\b",
        (
            Rule(f"gf{_AXIS}", "acc_{}", "g"),
            Rule(f"a{_AXIS}", "lin_{}", "m/s2"),
            Rule(f"w{_AXIS}", "gyro_{}", "rad/s"),
            Rule(f"b{_AXIS}", "mag_{}", "uT"),
            Rule("p", "pressure", "hPa"),
        ),
    ),
    AppFormat(
        "AndroSensor",
        r"(?m)^time since start in ms *$",
        (
            Rule(f"accelerometer {_AXIS}", "acc_{}", "m/s2"),
            Rule(f"linear acceleration {_AXIS}", "lin_{}", "m/s2"),
            Rule(f"gravity {_AXIS}", "gravity_{}", "m/s2"),
            Rule(f"gyroscope {_AXIS}", "gyro_{}", "rad/s"),
            Rule(f"magnetic field {_AXIS}", "mag_{}", "uT"),
        ),
    ),
    AppFormat(
        "SensorLog",
        r"(?m)^(loggingtime|accelerometeraccelerationx|motionuseraccelerationx)\b",
        (
            Rule(f"accelerometeracceleration{_AXIS}", "acc_{}", "g"),
            Rule(f"motionuseracceleration{_AXIS}", "lin_{}", "g"),
            Rule(f"motiongravity{_AXIS}", "gravity_{}", "g"),
            Rule(f"(?:gyrorotation|motionrotationrate){_AXIS}", "gyro_{}", "rad/s"),
            Rule(f"(?:magnetometer|motionmagneticfield){_AXIS}", "mag_{}", "uT"),
            Rule("motion(roll|pitch|yaw)", "{}", "rad"),
        ),
    ),
    AppFormat(
        "MetaBase",
        r"(?m)^(epoch? \(ms\)|elapsed \(s\)|timestamp \([+-]\d{4}\))$",
        (
            Rule(f"{_AXIS}-axis", "lin_{}", file="linear", quantity="acceleration"),
            Rule(f"{_AXIS}-axis", "acc_{}", quantity="acceleration"),
            Rule(f"{_AXIS}-axis", "gyro_{}", quantity="angular rate"),
            Rule(f"{_AXIS}-axis", "mag_{}", quantity="magnetic field"),
            Rule("pressure", "pressure", quantity="pressure"),
            Rule("temperature", "temperature", quantity="temperature"),
        ),
    ),
    AppFormat(
        "Shimmer",
        r"(?m)_cal$",
        (
            # The low-noise sensor before the one of a wide range.
            Rule(f"(?:.*_)?accel_ln_{_AXIS}_cal", "acc_{}", "m/s2"),
            Rule(f"(?:.*_)?accel_wr_{_AXIS}_cal", "acc_{}", "m/s2"),
            Rule(f"(?:.*_)?gyro_{_AXIS}_cal", "gyro_{}", "deg/s"),
            Rule(f"(?:.*_)?mag_{_AXIS}_cal", "mag_{}"),
            Rule(r"(?:.*_)?emg_ch([12])_\d+bit_cal", "emg_{}", "mV"),
        ),
    ),
    AppFormat(
        "Axivity",
        r"(?m)^accel-x \(g\)$",
        (
            Rule(f"accel-{_AXIS}", "acc_{}", "g"),
            Rule(f"gyro-{_AXIS}", "gyro_{}", "deg/s"),
            Rule("temperature", "temperature", "degC"),
        ),
    ),
)  # fmt: skip
