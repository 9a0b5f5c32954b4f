//! Finds the first block of a PEM file, as Go's `pem.Decode` does. Text before and after the block
//! is ignored.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Returns the bytes of the first block, whatever its label. Fails with the reason if there is no
/// block, if the block is not base64, or if the key is encrypted.
pub(super) fn first_block(file: &[u8]) -> Result<Vec<u8>, &'static str> {
    const NO_BLOCK: &str = "it has no PEM block";
    let text = String::from_utf8_lossy(file);
    let (_, block) = text.split_once("-----BEGIN ").ok_or(NO_BLOCK)?;
    let (label, block) = block.split_once("-----").ok_or(NO_BLOCK)?;
    let (body, _) = block.split_once(&format!("-----END {label}-----")).ok_or(NO_BLOCK)?;
    // Old tools mark an encrypted key with `Proc-Type: 4,ENCRYPTED`.
    if label.starts_with("ENCRYPTED") || body.contains("ENCRYPTED") {
        return Err("it is encrypted");
    }
    let base64: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(base64).map_err(|_| "its PEM block is not base64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_counts() {
        let file = b"A key:\r\n-----BEGIN X-----\r\nAQID\r\nBA==\r\n-----END X-----\r\nand another";
        assert_eq!(first_block(file), Ok(vec![1, 2, 3, 4]));
    }

    #[test]
    fn other_files_are_refused() {
        for (file, reason) in [
            ("", "it has no PEM block"),
            ("-----BEGIN ", "it has no PEM block"),
            ("-----BEGIN X-----AQID-----END Y-----", "it has no PEM block"),
            ("-----BEGIN X-----AQI-----END X-----", "its PEM block is not base64"),
            ("-----BEGIN ENCRYPTED X-----AQID-----END ENCRYPTED X-----", "it is encrypted"),
            (
                "-----BEGIN X-----\nProc-Type: 4,ENCRYPTED\n\nAQID\n-----END X-----",
                "it is encrypted",
            ),
        ] {
            assert_eq!(first_block(file.as_bytes()), Err(reason), "{file}");
        }
        assert!(first_block(b"\xff-----BEGIN X-----\xff-----END X-----").is_err());
    }
}
