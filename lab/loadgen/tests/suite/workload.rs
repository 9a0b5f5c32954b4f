//! Parses valid workload files, and checks the errors of invalid ones.

use std::fs;
use std::path::Path;

use clearlane_loadgen::arrivals::Spacing;
use clearlane_loadgen::keys::{Distribution, KeySpace, Sizes};
use clearlane_loadgen::workload::{Class, Operation, Workload, key_space};

const KEYS: &str = "[keys]\ncount = 1000\nsize = 32\nvalue = 64\n";

fn with_class(fields: &str) -> String {
    format!("seconds = 10\n{KEYS}[[class]]\n{fields}")
}

fn parse_error(text: &str) -> String {
    Workload::parse(text).map(drop).unwrap_err().to_string()
}

fn shipped(name: &str) -> Workload {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(name);
    Workload::parse(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn what_is_left_out_has_its_default() {
    let text = with_class("name = \"a\"\noperation = \"put\"\nrate = 1\n");
    let (prefix, value) = ("/load/".to_owned(), Sizes::constant(64));
    let space = KeySpace { prefix, count: 1000, key_size: 32, value };
    let class = Class {
        name: "a".to_owned(),
        index: 0,
        operation: Operation::Put { value },
        rate: 1.0,
        spacing: Spacing::Constant,
        connections: 1,
        distribution: Distribution::Uniform,
    };
    let workload = Workload { seconds: 10, space, classes: vec![class] };
    assert_eq!(Workload::parse(&text), Ok(workload));
}

#[test]
fn every_operation_is_read() {
    let operation = |fields: &str| {
        let text = with_class(&format!("name = \"a\"\nrate = 0.5\n{fields}"));
        Workload::parse(&text).unwrap().classes[0].operation
    };
    let value = Sizes { min: 1, max: 9 };
    for (fields, expected) in [
        ("operation = 'range'", Operation::Range { keys: 1, limit: None, serializable: false }),
        (
            "operation = 'range'\nkeys = 1000\nlimit = 100\nconsistency = 'serializable'",
            Operation::Range { keys: 1000, limit: Some(100), serializable: true },
        ),
        ("operation = 'put'\nvalue = { min = 1, max = 9 }", Operation::Put { value }),
        ("operation = 'delete'\nkeys = 3", Operation::Delete { keys: 3 }),
        ("operation = 'count'", Operation::Count { keys: 1000, serializable: false }),
        ("operation = 'watch'\nevents = 9", Operation::Watch { events: 9 }),
        ("operation = 'lease'\nttl = 5", Operation::Lease { ttl: 5 }),
        ("operation = 'authenticate'", Operation::Authenticate),
        (
            "operation = 'txn'\nkeys = 128\nvalue = { min = 1, max = 9 }",
            Operation::Txn { keys: 128, value },
        ),
    ] {
        assert_eq!(operation(fields), expected, "{fields}");
    }
}

#[test]
fn what_is_wrong_with_fields_and_rates_is_said_in_one_line() {
    let rest = "name = \"a\"\noperation = \"put\"\n";
    for (fields, line) in [
        (
            format!("{rest}rate = 1\nrat = 2"),
            "class \"a\": unknown field `rat`; known are name, operation, rate, arrivals, \
             connections, value, distribution",
        ),
        (
            format!("{rest}rate = 1\nkeys = 2"),
            "class \"a\": unknown field `keys`; known are name, operation, rate, arrivals, \
             connections, value, distribution",
        ),
        (rest.to_owned(), "class \"a\": `rate` is missing"),
        (
            format!("{rest}rate = 0"),
            "class \"a\": `rate` is 0; it must be a number above 0 and at most 1000000",
        ),
        (
            format!("{rest}rate = -1.5"),
            "class \"a\": `rate` is -1.5; it must be a number above 0 and at most 1000000",
        ),
        (
            format!("{rest}rate = nan"),
            "class \"a\": `rate` is nan; it must be a number above 0 and at most 1000000",
        ),
        (
            format!("{rest}rate = inf"),
            "class \"a\": `rate` is inf; it must be a number above 0 and at most 1000000",
        ),
        (
            format!("{rest}rate = \"fast\""),
            "class \"a\": `rate` is \"fast\"; it must be a number above 0 and at most 1000000",
        ),
    ] {
        assert_eq!(parse_error(&with_class(&fields)), line, "{fields}");
    }
}

#[test]
fn what_is_wrong_with_sizes_and_words_is_said_in_one_line() {
    let rest = "name = \"a\"\noperation = \"put\"\n";
    for (fields, line) in [
        (
            format!("{rest}rate = 1\narrivals = \"random\""),
            "class \"a\": `arrivals` is \"random\"; it must be constant or poisson",
        ),
        (
            format!("{rest}rate = 1\nconnections = 0"),
            "class \"a\": `connections` is 0; it must be a whole number from 1 to 1000",
        ),
        (
            format!("{rest}rate = 1\nvalue = 1048577"),
            "class \"a\": `value` is 1048577; it must be a whole number from 0 to 1048576",
        ),
        (
            format!("{rest}rate = 1\nvalue = {{ min = 5, max = 4 }}"),
            "class \"a\": `value`: `min` is 5; it must be at most `max`, 4",
        ),
        (
            format!("{rest}rate = 1\nvalue = {{ min = 5 }}"),
            "class \"a\": `value`: `max` is missing",
        ),
        (
            format!("{rest}rate = 1\nvalue = {{ min = 5, max = 6, mean = 5 }}"),
            "class \"a\": `value`: unknown field `mean`; known are min, max",
        ),
        ("operation = 'put'\nrate = 1".to_owned(), "class 1: `name` is missing"),
        ("name = 'a'\nrate = 1\nkeys = 1".to_owned(), "class \"a\": `operation` is missing"),
        (
            "name = 'a'\noperation = 'scan'\nrate = 1\nkeys = 5".to_owned(),
            "class \"a\": `operation` is \"scan\"; it must be range or count or put or \
             delete or txn or watch or lease or authenticate",
        ),
        (
            "name = 'a'\noperation = 'range'\nrate = 1\nkeys = 1001".to_owned(),
            "class \"a\": `keys` is 1001; it must be a whole number from 1 to 1000",
        ),
        (
            "name = 'a'\noperation = 'range'\nrate = 1\nkeys = 10\nlimit = 11".to_owned(),
            "class \"a\": `limit` is 11; it must be a whole number from 1 to 10",
        ),
        (
            "name = 'a'\noperation = 'txn'\nrate = 1\nkeys = 129".to_owned(),
            "class \"a\": `keys` is 129; it must be a whole number from 1 to 128",
        ),
        (
            "name = 'a'\noperation = 'txn'\nrate = 1\nkeys = 2\nvalue = 1048576".to_owned(),
            "class \"a\": `keys` is 2, which is up to 2097216 bytes; at most 1048576 are allowed",
        ),
    ] {
        assert_eq!(parse_error(&with_class(&fields)), line, "{fields}");
    }
}

#[test]
fn what_is_wrong_with_the_rest_is_said_in_one_line() {
    let class = "[[class]]\nname = \"a\"\noperation = \"put\"\nrate = 1\n";
    let keys = |keys: &str| format!("seconds = 10\n{class}[keys]\n{keys}");
    for (text, line) in [
        ("".to_owned(), "workload: `seconds` is missing"),
        ("seconds = 10".to_owned(), "workload: `keys` is missing"),
        ("seconds = 10\nkeys = 5".to_owned(), "workload: `keys` must be a table, [keys]"),
        (format!("seconds = 10\n{KEYS}"), "workload: `class` is missing"),
        (
            format!("seconds = 10\nclass = []\n{KEYS}"),
            "workload: `class` must be a list of tables, each [[class]]",
        ),
        (
            format!("seconds = 10\n{KEYS}{class}{class}"),
            "workload: two classes have the name \"a\"",
        ),
        (
            format!("seconds = 0\n{KEYS}{class}"),
            "workload: `seconds` is 0; it must be a whole number from 1 to 86400",
        ),
        (
            format!("seconds = 1\nthreads = 5\n{KEYS}{class}"),
            "workload: unknown field `threads`; known are seconds, keys, class, model",
        ),
        (keys("size = 9"), "[keys]: `count` is missing"),
        (
            keys("count = 1000\nsize = 9\nvalue = 1"),
            "[keys]: `size` is 9; it must be a whole number from 10 to 65536",
        ),
        (
            keys("count = 0\nsize = 9\nvalue = 1"),
            "[keys]: `count` is 0; it must be a whole number from 1 to 100000000",
        ),
        (
            keys("count = 10\nsize = 9\nvalue = -1"),
            "[keys]: `value` is -1; it must be a whole number from 0 to 1048576",
        ),
        (
            keys("count = 10\nsize = 9\nvalue = 1\nprefix = 5"),
            "[keys]: `prefix` is 5; it must be a string",
        ),
    ] {
        assert_eq!(parse_error(&text), line, "{text}");
    }
    let broken = parse_error(&format!("seconds = 10\n{KEYS}[[class]\n"));
    assert!(
        broken.starts_with("workload: line 6 is not TOML: ") && !broken.contains('\n'),
        "{broken}"
    );
}

#[test]
fn a_key_space_without_a_file_has_the_same_bounds() {
    let space = key_space(1_000_000, 32, 64).unwrap();
    assert_eq!((space.key(7).len(), space.value), (32, Sizes::constant(64)));
    let files = shipped("head-of-line.toml").space;
    assert!(space.key(0) > files.key(files.count) || space.key(space.count) < files.key(0));
    let told = key_space(1_000_000, 8, 64).map(drop).unwrap_err().to_string();
    assert_eq!(told, "[keys]: `size` is 8; it must be a whole number from 13 to 65536");
    assert!(key_space(u64::MAX, 8, 64).is_err());
}

#[test]
fn classes_can_be_left_out_and_the_others_stay_what_they_are() {
    let whole = shipped("head-of-line.toml");
    let calm = whole.clone().without(&["expensive".to_owned()]).unwrap();
    assert_eq!(calm.classes, whole.classes[1..]);
    let told = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        whole.clone().without(&names).map(drop).unwrap_err().to_string()
    };
    assert_eq!(told(&["dear"]), "--without dear: unknown class; known are expensive, cheap, put");
    assert_eq!(
        told(&["expensive", "cheap", "put"]),
        "--without omits all classes: expensive, cheap, put"
    );
}

#[test]
fn the_shipped_workloads_are_what_they_say() {
    let rates = |workload: &Workload| workload.classes.iter().map(|class| class.rate).collect();
    let (small, large) = (shipped("head-of-line.toml"), shipped("head-of-line-large.toml"));
    for workload in [&small, &large] {
        assert_eq!((workload.seconds, workload.space.count), (30, 100_000));
        let reads = |keys| Operation::Range { keys, limit: None, serializable: false };
        assert_eq!(workload.classes[0].operation, reads(20_000));
        assert_eq!(workload.classes[1].operation, reads(10));
        assert_eq!(workload.classes[2].operation, Operation::Put { value: workload.space.value });
    }
    let (small_rates, large_rates): (Vec<f64>, Vec<f64>) = (rates(&small), rates(&large));
    assert_eq!((small_rates, large_rates), (vec![1.0, 100.0, 20.0], vec![0.2, 100.0, 20.0]));
    assert_eq!((small.space.key_size, small.space.value), (256, Sizes::constant(1024)));
    let value = Sizes { min: 1024, max: 32_768 };
    assert_eq!((large.space.key_size, large.space.value), (128, value));
}

#[test]
fn a_table_for_the_simulator_is_left_to_it() {
    let text = with_class("name = \"a\"\noperation = \"put\"\nrate = 1\n");
    let with_model = format!("{text}[model]\ncores = 16\nsync_ms = {{ mean = 1, p99 = 5 }}\n");
    assert_eq!(Workload::parse(&with_model), Workload::parse(&text));
}

#[test]
fn a_field_can_be_changed_by_its_name_and_nothing_else_changes() {
    let whole = shipped("head-of-line.toml");
    let mut changed = whole.clone();
    for (name, value) in [
        ("cheap.rate", toml::Value::from(250)),
        ("expensive.keys", toml::Value::from(5_000)),
        ("expensive.limit", toml::Value::from(500)),
        ("expensive.consistency", toml::Value::from("serializable")),
        ("put.value", toml::Value::from(1 << 20)),
        ("keys.count", toml::Value::from(200_000)),
        ("seconds", toml::Value::from(7)),
    ] {
        changed.set(name, value).unwrap();
    }
    let mut expected = whole;
    expected.seconds = 7;
    expected.space.count = 200_000;
    expected.classes[0].operation =
        Operation::Range { keys: 5_000, limit: Some(500), serializable: true };
    expected.classes[1].rate = 250.0;
    expected.classes[2].operation = Operation::Put { value: Sizes::constant(1 << 20) };
    assert_eq!(changed, expected);
}

#[test]
fn what_cannot_be_changed_so_is_said_in_one_line() {
    let told = |name: &str, value: i64| {
        let mut workload = shipped("head-of-line.toml");
        let told = workload.set(name, value.into()).unwrap_err().to_string();
        assert_eq!(workload, shipped("head-of-line.toml"), "{name}");
        told
    };
    assert_eq!(
        told("chap.rate", 1),
        "unknown field `chap.rate`; known are seconds, keys.FIELD, and CLASS.FIELD, where CLASS is \
         one of expensive, cheap, put"
    );
    assert_eq!(
        told("put.rate", 0),
        "class \"put\": `rate` is 0; it must be a number above 0 and at most 1000000"
    );
    assert_eq!(
        told("put.limit", 1),
        "class \"put\": unknown field `limit`; known are name, operation, rate, arrivals, \
         connections, value, distribution"
    );
    assert_eq!(
        told("keys.count", 100),
        "class \"expensive\": `keys` is 20000; it must be a whole number from 1 to 100"
    );
    assert_eq!(
        told("seconds", 0),
        "workload: `seconds` is 0; it must be a whole number from 1 to 86400"
    );
}
