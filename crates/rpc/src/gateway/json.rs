//! Translates JSON to the bytes of a message, and back.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use clearlane_contention::YieldPoints;
use prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Deserializer;
use serde_json::de::{IoRead, Read as JsonRead};
use tonic::Status;

/// Decoding one byte of JSON is counted like reading this number of bytes of records. Decoding is
/// expensive, because three bytes of JSON may be a whole message. So a
/// [step](YieldPoints::BYTES_PER_STEP) of 64 KiB of records corresponds to 2 KiB of JSON.
const BYTES_PER_JSON_BYTE: usize = 32;

/// Translates JSON to the bytes of a message. Empty JSON becomes an empty message. Fails if the
/// JSON is malformed.
pub(crate) fn to_message(kind: &MessageDescriptor, json: &[u8]) -> Result<Bytes, Status> {
    if json.trim_ascii().is_empty() {
        return Ok(Bytes::new());
    }
    deserialize(kind, Deserializer::from_slice(json))
}

/// Does the same as [`to_message`], but passes [`YieldPoints`] while it works, so that other jobs
/// of the read pool can run during the translation of long JSON. The column in an error may be off
/// by one.
pub(crate) fn to_message_in_steps(kind: &MessageDescriptor, json: Bytes) -> Result<Bytes, Status> {
    if json.trim_ascii().is_empty() {
        return Ok(Bytes::new());
    }
    let steps = YieldPoints::default();
    deserialize(kind, Deserializer::new(IoRead::new(JsonInSteps { json, steps })))
}

struct JsonInSteps {
    json: Bytes,
    steps: YieldPoints,
}

impl Read for JsonInSteps {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(self.json.len());
        self.json.copy_to_slice(&mut into[..length]);
        self.steps.advance(length * BYTES_PER_JSON_BYTE);
        Ok(length)
    }
}

fn deserialize<'json>(
    kind: &MessageDescriptor,
    mut reader: Deserializer<impl JsonRead<'json>>,
) -> Result<Bytes, Status> {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(kind.clone(), &mut reader, &options)
        .and_then(|message| reader.end().map(|()| message))
        .map_err(|error| malformed_json(&error))?;
    Ok(message.encode_to_vec().into())
}

fn malformed_json(error: &serde_json::Error) -> Status {
    let (line, column) = (error.line(), error.column());
    let words = error.to_string();
    let place = format!(" at line {line} column {column}");
    let words = words.strip_suffix(&place).unwrap_or(&words);
    Status::invalid_argument(format!("proto: (line {line}:{column}): {words}"))
}

pub(crate) fn of_message(kind: &MessageDescriptor, message: Bytes) -> Result<Vec<u8>, Status> {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(true)
        .skip_default_fields(true)
        .use_enum_numbers(false);
    let message = DynamicMessage::decode(kind.clone(), message)
        .map_err(|error| Status::internal(error.to_string()))?;
    let mut writer = serde_json::Serializer::new(Vec::new());
    message
        .serialize_with_options(&mut writer, &options)
        .map_err(|error| Status::internal(error.to_string()))?;
    Ok(writer.into_inner())
}

/// Returns the JSON line that reports an error as the last line of a stream.
pub(super) fn error_line(status: &Status) -> String {
    format!("{{\"error\":{}}}\n", of_status(status))
}

pub(super) fn of_status(status: &Status) -> String {
    let message = serde_json::Value::from(status.message());
    format!(r#"{{"code":{},"message":{message}}}"#, status.code() as i32)
}

#[cfg(test)]
mod tests {
    use super::super::bindings;
    use super::*;

    /// Returns the code, the line and the text of an error. The column is omitted, because it may
    /// differ.
    fn without_column(status: Status) -> (tonic::Code, String) {
        let (line, words) = status.message().split_once("):").unwrap();
        let (line, _column) = line.rsplit_once(':').unwrap();
        (status.code(), format!("{line}):{words}"))
    }

    fn both(path: &str, json: &str) -> Result<Bytes, (tonic::Code, String)> {
        let kind = bindings::find(path).unwrap().method.input();
        let at_once = to_message(&kind, json.as_bytes()).map_err(without_column);
        let in_steps = to_message_in_steps(&kind, json.to_owned().into()).map_err(without_column);
        assert_eq!(in_steps, at_once, "{json}");
        at_once
    }

    #[test]
    fn in_steps_json_becomes_the_same_message() {
        let value = "QUJD".repeat(50_000);
        let put = format!(r#"{{"key":"YQ==", "value":"{value}", "lease":"7", "else":[1,{{}}]}}"#);
        assert!(both("/kv/put", &put).unwrap().len() > 150_000);
        let operations = r#"{"requestPut":{"key":"YQ\u003d="}},{},"#.repeat(5_000);
        let txn = format!(r#"{{"success":[{operations}{{"request_range":{{"limit":3}}}}]}}"#);
        assert!(both("/kv/txn", &txn).unwrap().len() > 10_000);
        assert_eq!(both("/kv/put", " \n").unwrap(), Bytes::new());
    }

    #[test]
    fn in_steps_the_errors_are_the_same() {
        let deep = "[".repeat(1000);
        for json in [
            "{",
            "nul",
            r#"{"key":"YQ==""#,
            r#"{"key":"YQ=="}}"#,
            r#"{"key":"YQ=="} x"#,
            r#"{"key":"*"}"#,
            r#"{"key":7}"#,
            r#"{"key":"YQ==","lease":"x"}"#,
            "{\n\n  \"key\": \"YQ==\",\n  \"lease\": []\n}",
            "{\n\"key\" \"YQ==\"}",
            "{\"key\":\"a\nb\"}",
            r#"{"key":"\x"}"#,
            "[]",
            &format!(r#"{{"else":{deep}"#),
        ] {
            both("/kv/put", json).unwrap_err();
        }
    }
}
