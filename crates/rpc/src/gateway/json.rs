//! JSON to a message's bytes, and back.

use bytes::Bytes;
use prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use tonic::Status;

/// No JSON at all is an empty message.
pub(crate) fn to_message(kind: &MessageDescriptor, json: &[u8]) -> Result<Bytes, Status> {
    if json.trim_ascii().is_empty() {
        return Ok(Bytes::new());
    }
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut reader = serde_json::Deserializer::from_slice(json);
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

/// As the last line of a stream.
pub(super) fn error_line(status: &Status) -> String {
    format!("{{\"error\":{}}}\n", of_status(status))
}

pub(super) fn of_status(status: &Status) -> String {
    let message = serde_json::Value::from(status.message());
    format!(r#"{{"code":{},"message":{message}}}"#, status.code() as i32)
}
