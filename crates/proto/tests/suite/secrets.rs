//! Tests that `Debug` of a message with a password, a hash of a password or a token does not print
//! the secret.

use std::fmt::Debug;

use clearlane_proto::DESCRIPTORS;
use clearlane_proto::Message;
use clearlane_proto::authpb::User;
use clearlane_proto::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse,
    InternalAuthenticateRequest, InternalRaftRequest,
};
use prost_types::FileDescriptorSet;

fn printed(message: &impl Debug) -> String {
    let text = format!("{message:?} {message:#?}");
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains("***") && text.contains("a-name"), "{text}");
    text
}

#[test]
fn a_secret_is_not_printed() {
    let (name, secret) = ("a-name".to_owned(), "secret".to_owned());
    printed(&User { name: name.clone().into(), password: "secret".into(), ..User::default() });
    printed(&AuthenticateRequest { name: name.clone(), password: secret.clone() });
    printed(&AuthUserChangePasswordRequest {
        name: name.clone(),
        password: secret.clone(),
        hashed_password: secret.clone(),
    });
    let answer = AuthenticateResponse { token: secret.clone(), ..AuthenticateResponse::default() };
    assert!(!format!("{answer:?}").contains("secret"));
    let add = AuthUserAddRequest {
        name: name.clone(),
        password: secret.clone(),
        hashed_password: secret.clone(),
        ..AuthUserAddRequest::default()
    };
    printed(&add);
    // The secret is also hidden inside another message.
    let authenticate =
        InternalAuthenticateRequest { name, password: secret.clone(), simple_token: secret };
    printed(&InternalRaftRequest {
        auth_user_add: Some(add),
        authenticate: Some(authenticate),
        ..InternalRaftRequest::default()
    });
}

/// Finds the messages with a secret by the names of their fields, and compares them with a list. If
/// a message with a secret is added later, the test fails. The author must then hide the secret in
/// `src/secret.rs`, and add the message to the lists here and in `build.rs`.
#[test]
fn these_are_all_messages_with_secrets() {
    let files = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let messages = files.file.iter().flat_map(|file| &file.message_type);
    let has_secret = |name: &str| {
        let name = name.to_lowercase();
        (name.contains("password") && name != "no_password") || name.contains("token")
    };
    let mut found: Vec<&str> = messages
        .filter(|message| {
            let scalar = message.field.iter().filter(|field| field.type_name.is_none());
            scalar.into_iter().any(|field| has_secret(field.name()))
        })
        .map(|message| message.name())
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "AuthUserAddRequest",
            "AuthUserChangePasswordRequest",
            "AuthenticateRequest",
            "AuthenticateResponse",
            "InternalAuthenticateRequest",
            "User",
        ]
    );
}
