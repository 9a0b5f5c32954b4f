//! JSON web tokens: the token of a call, and an operator's settings for the keys.
//!
//! ```text
//!   0 to 4 (the method) │ token            the token as it is
//!   5 │ header │ claims                    a signed token, so that its claims are checked
//!   6 │ options (2 + n) │ file             the value of --auth-token, and the file with the key
//! ```

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clearlane_auth::simple_tokens::SimpleToken;
use clearlane_auth::{JwtClaims, JwtProvider};
use ring::hmac;

use crate::input::Input;

const SECRET: &[u8] = include_bytes!("../../../../crates/auth/tests/keys/secret");
/// Five methods: the options of each, and the key that checks its tokens.
const KEYS: [(&str, &[u8]); 5] = [
    ("sign-method=HS256,priv-key=f", SECRET),
    (
        "sign-method=RS256,pub-key=f",
        include_bytes!("../../../../crates/auth/tests/keys/rsa.public.pem"),
    ),
    (
        "sign-method=PS384,pub-key=f",
        include_bytes!("../../../../crates/auth/tests/keys/rsa.public.pem"),
    ),
    (
        "sign-method=ES256,pub-key=f",
        include_bytes!("../../../../crates/auth/tests/keys/p256.public.pem"),
    ),
    (
        "sign-method=EdDSA,pub-key=f",
        include_bytes!("../../../../crates/auth/tests/keys/ed25519.public.pem"),
    ),
];
/// The current time, in seconds since 1970.
const NOW: u64 = 1_000_000_000;

static PROVIDERS: LazyLock<Vec<JwtProvider>> = LazyLock::new(|| {
    let providers = KEYS.iter().map(|(options, key)| {
        JwtProvider::new(options, &|_| Ok(key.to_vec())).expect("a key of that method")
    });
    providers.collect()
});

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    match input.choice(KEYS.len() + 2) {
        5 => {
            let _ = verify_signed(input.string(), input.rest());
        }
        6 => {
            let options = String::from_utf8_lossy(input.string());
            let file = input.rest();
            if let Err(error) = JwtProvider::new(&options, &|_| Ok(file.to_vec())) {
                assert!(!error.to_string().is_empty());
            }
        }
        method => {
            let token = String::from_utf8_lossy(input.rest());
            let _ = PROVIDERS[method].verify(&token, NOW);
            let _ = SimpleToken::parse(&token);
        }
    }
}

/// Verifies a token that is signed with the secret of HS256.
pub fn verify_signed(header: &[u8], claims: &[u8]) -> Option<JwtClaims> {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    let signed = format!("{header}.{claims}");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    PROVIDERS[0].verify(&format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)), NOW)
}
