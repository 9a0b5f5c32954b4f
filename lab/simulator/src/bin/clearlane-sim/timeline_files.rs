//! The files of `--timeline`: one for each era.

use std::path::{Path, PathBuf};

use clap::{Arg, value_parser};
use clearlane_simulator::era::Era;
use clearlane_simulator::show::{Recording, sentence};

use crate::text::write;

pub(crate) fn argument() -> Arg {
    Arg::new("timeline")
        .long("timeline")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(
            "Records which thread did what around the longest wait of a request; of several eras \
             each into a file of its own, such as FILE-3.2.jsonl for FILE.jsonl",
        )
}

/// With several eras the file's name gets the era.
fn path_of(file: &Path, era: Era, count: usize) -> PathBuf {
    if count == 1 {
        return file.to_owned();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name = match file.extension() {
        Some(extension) => format!("{stem}-{era}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{era}"),
    };
    file.with_file_name(name)
}

/// Writes them, and returns a line on each.
pub(crate) fn write_each(file: &Path, recorded: &[(Era, Recording)]) -> Result<String, String> {
    let mut lines = String::new();
    for (era, recording) in recorded {
        let path = path_of(file, *era, recorded.len());
        write(&path, &format!("{}{}", recording.header, recording.timeline))?;
        let longest = sentence(&recording.longest_chain());
        lines += &format!("{}: {longest}\n", path.display());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_eras_have_several_files() {
        let path = |file: &str, count| path_of(Path::new(file), Era::V3_2, count);
        assert_eq!(path("a/b.jsonl", 1), Path::new("a/b.jsonl"));
        assert_eq!(path("a/b.jsonl", 2), Path::new("a/b-3.2.jsonl"));
        assert_eq!(path("b", 2), Path::new("b-3.2"));
    }
}
