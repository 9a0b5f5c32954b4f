//! The text of a config file: it is refused with words, or becomes a configuration.

use clearlane::config;

pub fn target(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(error) = config::read_file("file.yml", &text, Vec::new()) {
        assert!(error.to_string().contains("file.yml"), "{error} does not name the file");
    }
}
