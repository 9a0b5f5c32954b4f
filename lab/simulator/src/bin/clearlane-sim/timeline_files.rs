//! The files of `--timeline`, one for each era.

use std::path::{Path, PathBuf};

use clap::Arg;
use clearlane_simulator::era::Era;
use clearlane_simulator::show::{Recording, conclusion, sentence};

use crate::text::{path_flag, write};

pub(crate) fn argument() -> Arg {
    path_flag("timeline", "FILE").help(
        "Records the activity of each thread around the longest wait of a request; with several \
         eras, each has its own file, such as FILE-3.2.jsonl for FILE.jsonl",
    )
}

/// Returns the path for an era. With several eras, the era is added to the file's name.
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

/// Writes the recordings, and returns a line about each. With several recordings, the last line
/// compares them.
pub(crate) fn write_each(file: &Path, recorded: &[(Era, Recording)]) -> Result<String, String> {
    let mut lines = String::new();
    for (era, recording) in recorded {
        let path = path_of(file, *era, recorded.len());
        write(&path, &format!("{}{}", recording.header, recording.timeline))?;
        let longest = sentence(&recording.longest_chain());
        lines += &format!("{}: {longest}\n", path.display());
    }
    if recorded.len() > 1 {
        lines += &format!("{}\n", conclusion(recorded.iter().map(|(_, recording)| recording)));
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
