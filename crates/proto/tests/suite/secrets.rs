//! A message with a password, its hash or a token is printed without it.

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
    // Within another message, too.
    let authenticate =
        InternalAuthenticateRequest { name, password: secret.clone(), simple_token: secret };
    printed(&InternalRaftRequest {
        auth_user_add: Some(add),
        authenticate: Some(authenticate),
        ..InternalRaftRequest::default()
    });
}

/// A field that is added later is seen by its name.
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
