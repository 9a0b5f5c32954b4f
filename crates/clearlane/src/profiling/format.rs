//! The format of pprof: a compressed protobuf message that refers to strings, functions and
//! locations by numbers.
//!
//! ```text
//!   sample ──▶ location (an address) ──▶ line ──▶ function ──▶ strings
//!                   └──▶ mapping (the file that contains the address)
//! ```

use std::collections::HashMap;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::stack;

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    labels: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    start: u64,
    #[prost(uint64, tag = "3")]
    end: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    file: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    file: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_types: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mappings: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    locations: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<Function>,
    /// All strings, by number. String 0 is empty.
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "9")]
    time_ns: i64,
    #[prost(int64, tag = "10")]
    duration_ns: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comments: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

impl Profile {
    pub(super) fn to_gzip(&self) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        let written = out.write_all(&self.encode_to_vec()).and_then(|()| out.finish());
        written.expect("memory takes everything")
    }
}

/// The names of functions that record the stack of an allocation contain one of these texts.
const OWN_NAMES: [&str; 3] = ["clearlane::profiling::", "clearlane::allocator::", "__rust_alloc"];
/// Number of innermost frames that are compared with [`OWN_NAMES`]. The profiler's code may also
/// appear further out, if an allocation is made while a profile is requested. Such a frame is kept.
const OWN_FRAMES_MAX: usize = 16;

/// Builds a profile, and assigns the numbers of its strings, functions and locations.
pub(super) struct ProfileBuilder {
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<usize, u64>,
}

impl ProfileBuilder {
    /// Creates an empty profile. Each sample has one value for each of `types`, which are pairs of
    /// name and unit.
    pub(super) fn new(types: &[(&str, &str)]) -> ProfileBuilder {
        let mut builder = ProfileBuilder {
            profile: Profile::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
        };
        builder.string("");
        for (kind, unit) in types {
            let value = builder.value_type(kind, unit);
            builder.profile.sample_types.push(value);
        }
        builder.add_mappings(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default());
        builder.set_time(SystemTime::now(), Duration::ZERO);
        builder
    }

    pub(super) fn set_period(&mut self, (kind, unit): (&str, &str), period: i64) {
        self.profile.period_type = Some(self.value_type(kind, unit));
        self.profile.period = period;
    }

    pub(super) fn set_time(&mut self, begun: SystemTime, duration: Duration) {
        let since = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.profile.time_ns = since.as_nanos() as i64;
        self.profile.duration_ns = duration.as_nanos() as i64;
    }

    pub(super) fn show_first(&mut self, kind: &str) {
        self.profile.default_sample_type = self.string(kind);
    }

    pub(super) fn add_comment(&mut self, text: &str) {
        let text = self.string(text);
        self.profile.comments.push(text);
    }

    /// Adds a sample. The label is a name and a text.
    pub(super) fn add_sample(
        &mut self,
        frames: &[usize],
        values: &[i64],
        label: Option<(&str, &str)>,
    ) {
        let locations = frames.iter().map(|address| self.location(*address)).collect();
        let labels =
            label.map(|(key, text)| Label { key: self.string(key), text: self.string(text) });
        let labels = labels.into_iter().collect();
        self.profile.samples.push(Sample { locations, values: values.to_vec(), labels });
    }

    /// Returns the frames without the innermost ones, which belong to the code that recorded the
    /// stack.
    pub(super) fn without_own<'a>(&mut self, frames: &'a [usize]) -> &'a [usize] {
        let near = &frames[..frames.len().min(OWN_FRAMES_MAX)];
        let own = near.iter().rposition(|address| self.is_own(*address));
        &frames[own.map_or(0, |last| last + 1)..]
    }

    /// Returns whether an address is in a function that records stacks. The outermost function at
    /// this address decides, because the other functions are inlined into it.
    fn is_own(&mut self, address: usize) -> bool {
        let id = self.location(address);
        let location = &self.profile.locations[id as usize - 1];
        let function = location.lines.last().map(|line| line.function as usize - 1);
        let name = function.map(|at| self.profile.functions[at].name as usize);
        let name = name.map_or("", |at| self.profile.strings[at].as_str());
        OWN_NAMES.iter().any(|own| name.contains(own))
    }

    pub(super) fn build(self) -> Profile {
        self.profile
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(at) = self.strings.get(text) {
            return *at;
        }
        let at = self.profile.strings.len() as i64;
        self.profile.strings.push(text.to_owned());
        self.strings.insert(text.to_owned(), at);
        at
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { kind: self.string(kind), unit: self.string(unit) }
    }

    /// Adds the executable mappings of files. `maps` has lines such as
    /// `55d0c0400000-55d0c1200000 r-xp 00400000 fe:00 1234 /usr/bin/clearlane`.
    fn add_mappings(&mut self, maps: &str) {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [range, rights, offset, _, _, file] = words[..] else { continue };
            let Some((start, end)) = range.split_once('-').filter(|_| rights.contains('x')) else {
                continue;
            };
            let (Some(start), Some(end), Some(file_offset)) = (hex(start), hex(end), hex(offset))
            else {
                continue;
            };
            let id = self.profile.mappings.len() as u64 + 1;
            let file = self.string(file);
            self.profile.mappings.push(Mapping {
                id,
                start,
                end,
                file_offset,
                file,
                ..Default::default()
            });
        }
    }

    fn location(&mut self, address: usize) -> u64 {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let frames = stack::names(address);
        let within =
            |mapping: &&mut Mapping| (mapping.start..mapping.end).contains(&(address as u64));
        let mapping = self.profile.mappings.iter_mut().find(within).map_or(0, |mapping| {
            // pprof reads names from the file only if a mapping has none.
            mapping.has_functions |= !frames.is_empty();
            mapping.has_filenames |= frames.iter().any(|frame| !frame.file.is_empty());
            mapping.has_line_numbers |= frames.iter().any(|frame| frame.line > 0);
            mapping.has_inline_frames |= frames.len() > 1;
            mapping.id
        });
        let lines = frames
            .iter()
            .map(|frame| Line { function: self.function(frame), line: i64::from(frame.line) })
            .collect();
        let id = self.profile.locations.len() as u64 + 1;
        // `address` is a return address. One byte less is within the call instruction, as in other
        // profiles.
        let location = Location { id, mapping, address: (address as u64).saturating_sub(1), lines };
        self.profile.locations.push(location);
        self.locations.insert(address, id);
        id
    }

    fn function(&mut self, frame: &stack::NamedFrame) -> u64 {
        let (name, file) = (self.string(&frame.function), self.string(&frame.file));
        // pprof shortens a name only if it differs from its symbol.
        let system_name = self.string(&frame.symbol);
        let next = self.profile.functions.len() as u64 + 1;
        let id = *self.functions.entry((name, file)).or_insert(next);
        if id == next {
            self.profile.functions.push(Function { id, name, system_name, file });
        }
        id
    }
}
