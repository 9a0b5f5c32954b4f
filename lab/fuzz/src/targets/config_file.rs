//! The text of a config file. The program rejects it with a message that names the file, or reads a
//! configuration from it.

use clearlane::config;

pub fn target(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(error) = config::read_file("file.yml", &text, Vec::new()) {
        assert!(error.to_string().contains("file.yml"), "{error} does not name the file");
    }
}
