//! JSON web tokens: which options and keys are accepted, and which tokens are valid.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::fs;
use std::io;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clearlane_auth::{JwtClaims, JwtError, JwtProvider, TOKEN_BYTES_MAX};
use proptest::prelude::*;
use ring::hmac;
use ring::rand::SystemRandom;

const NOW: u64 = 1_800_000_000;

/// Each method with a private key, and the files that contain its public key.
const METHODS: [(&str, &str, &[&str]); 13] = [
    ("RS256", "rsa.pkcs1.pem", RSA_PUBLIC),
    ("RS384", "rsa.pkcs1.pem", RSA_PUBLIC),
    ("RS512", "rsa.pkcs8.pem", RSA_PUBLIC),
    ("PS256", "rsa.pkcs8.pem", RSA_PUBLIC),
    ("PS384", "rsa.pkcs1.pem", RSA_PUBLIC),
    ("PS512", "rsa.pkcs1.pem", RSA_PUBLIC),
    ("ES256", "p256.sec1.pem", &["p256.public.pem", "p256.certificate.pem"]),
    ("ES384", "p384.sec1.pem", &["p384.public.pem", "p384.certificate.pem"]),
    ("ES512", "p521.sec1.pem", &["p521.public.pem", "p521.certificate.pem"]),
    ("HS256", "secret", &[]),
    ("HS384", "secret", &[]),
    ("HS512", "secret", &[]),
    ("EdDSA", "ed25519.pkcs8.pem", &["ed25519.public.pem", "ed25519.certificate.pem"]),
];
const RSA_PUBLIC: &[&str] = &["rsa.public.pem", "rsa.public.pkcs1.pem", "rsa.certificate.pem"];

fn read_key(name: &str) -> io::Result<Vec<u8>> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys").join(name))
}

fn open(options: &str) -> Result<JwtProvider, JwtError> {
    JwtProvider::new(options, &read_key)
}

fn provider(method: &str, key: &str) -> JwtProvider {
    open(&format!("sign-method={method},priv-key={key}")).unwrap()
}

fn sign(provider: &JwtProvider, username: &str) -> String {
    provider.sign(username, 123, NOW, &SystemRandom::new()).unwrap()
}

fn claims(username: &str) -> JwtClaims {
    JwtClaims { username: username.to_owned(), revision: 123 }
}

/// Makes a token from any header and claims, signed by HMAC with the secret of the tests.
fn hs256(header: &str, claims: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &read_key("secret").unwrap());
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&key, text.as_bytes()));
    format!("{text}.{tag}")
}

const HS256: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

fn verify_claims(claims: &str) -> Option<JwtClaims> {
    provider("HS256", "secret").verify(&hs256(HS256, claims), NOW)
}

#[test]
fn every_method_signs_and_verifies() {
    for (method, key, public_keys) in METHODS {
        let own = provider(method, key);
        assert!(!own.is_verify_only());
        let token = sign(&own, "al\"ice é");
        assert_eq!(own.verify(&token, NOW), Some(claims("al\"ice é")), "{method}");
        for public_key in public_keys {
            let other = open(&format!("sign-method={method},pub-key={public_key}")).unwrap();
            assert!(other.is_verify_only());
            assert_eq!(other.verify(&token, NOW), Some(claims("al\"ice é")), "{public_key}");
            let error = other.sign("alice", 1, NOW, &SystemRandom::new()).unwrap_err();
            assert_eq!(error.to_string(), "auth: token signing attempted with verify-only key");
            let both = format!("sign-method={method},pub-key={public_key},priv-key={key}");
            assert!(!open(&both).unwrap().is_verify_only());
        }
    }
}

#[test]
fn keys_of_one_method_in_other_formats_are_the_same() {
    for (method, one, others) in [
        ("RS256", "rsa.pkcs1.pem", &["rsa.pkcs8.pem"][..]),
        ("ES256", "p256.sec1.pem", &["p256.pkcs8.pem", "p256.sec1-no-public.pem"]),
        ("ES384", "p384.sec1.pem", &["p384.pkcs8.pem", "p384.sec1-no-public.pem"]),
        ("ES512", "p521.sec1.pem", &["p521.pkcs8.pem", "p521.sec1-no-public.pem"]),
    ] {
        let one = provider(method, one);
        for other in others {
            let token = sign(&provider(method, other), "alice");
            assert_eq!(one.verify(&token, NOW), Some(claims("alice")), "{other}");
        }
    }
}

#[test]
fn tokens_of_golang_jwt_are_good() {
    let tokens = String::from_utf8(read_key("golang-jwt.tokens").unwrap()).unwrap();
    assert_eq!(tokens.lines().count(), METHODS.len());
    for (line, (method, key, _)) in tokens.lines().zip(METHODS) {
        let (name, token) = line.split_once(' ').unwrap();
        assert_eq!(name, method);
        let provider = provider(method, key);
        let good = Some(claims("al<ic>e é\u{2028}"));
        assert_eq!(provider.verify(token, NOW), good, "{method}");
        assert_eq!(provider.verify(token, 4_102_444_799), good);
        assert_eq!(provider.verify(token, 4_102_444_800), None);
    }
}

/// Checks the header and the claims of a token. golang-jwt writes the same text for both.
#[test]
fn a_token_reads() {
    let token = sign(&open("sign-method=HS256,priv-key=secret,ttl=1h").unwrap(), "alice");
    let parts: Vec<&str> = token.split('.').collect();
    let text = |part| String::from_utf8(URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap();
    assert_eq!(text(parts[0]), HS256);
    assert_eq!(text(parts[1]), r#"{"exp":1800003600,"revision":123,"username":"alice"}"#);
    assert_eq!(parts.len(), 3);
}

#[test]
fn a_token_ends_with_its_ttl() {
    for (ttl, seconds) in
        [("", 300), (",ttl=", 300), (",ttl=10m", 600), (",ttl=+1h0.5m", 3630), (",ttl=1ms", 1)]
    {
        let provider = open(&format!("sign-method=HS256,priv-key=secret{ttl}")).unwrap();
        let token = sign(&provider, "alice");
        assert!(provider.verify(&token, NOW + seconds - 1).is_some(), "{ttl}");
        assert_eq!(provider.verify(&token, NOW + seconds), None, "{ttl}");
        assert_eq!(provider.verify(&token, u64::MAX), None);
    }
    let provider = provider("HS256", "secret");
    // An expiry that Go's clock cannot represent is treated as past.
    let token = provider.sign("alice", 1, u64::MAX, &SystemRandom::new()).unwrap();
    assert_eq!(provider.verify(&token, NOW), None);
}

#[test]
fn another_key_or_method_verifies_nothing() {
    let random = provider("RS256", "rsa-other.pkcs1.pem");
    assert_eq!(provider("RS256", "rsa.pkcs1.pem").verify(&sign(&random, "alice"), NOW), None);
    let providers = METHODS.map(|(method, key, _)| (method, provider(method, key)));
    for (signer, signing) in &providers {
        let token = sign(signing, "alice");
        for (verifier, verifying) in &providers {
            assert_eq!(verifying.verify(&token, NOW).is_some(), signer == verifier, "{verifier}");
            // A header that names the verifier's method does not make the token of another signer
            // valid.
            let (_, rest) = token.split_once('.').unwrap();
            let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{verifier}","typ":"JWT"}}"#));
            let token = format!("{header}.{rest}");
            assert_eq!(verifying.verify(&token, NOW).is_some(), signer == verifier);
        }
    }
}

#[test]
fn a_token_without_signature_is_not_good() {
    let claims = URL_SAFE_NO_PAD.encode(r#"{"username":"root","revision":1}"#);
    for (method, key, _) in METHODS {
        let provider = provider(method, key);
        for alg in ["none", "None", "NONE", "", method, &method.to_lowercase()] {
            let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{alg}","typ":"JWT"}}"#));
            for signature in ["", "AA", &"A".repeat(86), &"A".repeat(342)] {
                let token = format!("{header}.{claims}.{signature}");
                assert_eq!(provider.verify(&token, NOW), None, "{token}");
            }
            assert_eq!(provider.verify(&format!("{header}.{claims}"), NOW), None);
        }
    }
}

/// A known attack uses the public key, which is not secret, as an HMAC secret. Such a token must be
/// rejected.
#[test]
fn a_public_key_is_no_secret() {
    let rsa = provider("RS256", "rsa.pkcs1.pem");
    let file = read_key("rsa.public.pem").unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &file);
    let claims = URL_SAFE_NO_PAD.encode(r#"{"username":"root","revision":1}"#);
    for alg in ["HS256", "RS256"] {
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{alg}"}}"#));
        let text = format!("{header}.{claims}");
        let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&key, text.as_bytes()));
        assert_eq!(rsa.verify(&format!("{text}.{tag}"), NOW), None);
    }
}

#[test]
fn other_headers_of_the_method_are_good() {
    let provider = provider("HS256", "secret");
    let claims_text = r#"{"username":"alice","revision":123}"#;
    for header in [
        r#"{"alg":"HS256"}"#,
        r#" { "typ": "JWT", "alg": "HS256", "kid": [1, {"a": null}] } "#,
        r#"{"\u0061lg":"HS\u003256"}"#,
    ] {
        assert_eq!(provider.verify(&hs256(header, claims_text), NOW), Some(claims("alice")));
    }
    for header in [
        "",
        "null",
        "1",
        r#""HS256""#,
        r#"["HS256"]"#,
        r#"{}"#,
        r#"{"alg":null}"#,
        r#"{"alg":"HS384"}"#,
        r#"{"alg":"hs256"}"#,
        r#"{"alg":"HS256","alg":"none"}"#,
        r#"{"alg":"HS256"}x"#,
        r#"{"alg":"HS256""#,
    ] {
        assert_eq!(provider.verify(&hs256(header, claims_text), NOW), None, "{header}");
    }
}

#[test]
fn claims_are_checked() {
    let good = Some(claims("alice"));
    for more in [
        "",
        r#","exp":1800000001"#,
        r#","exp":1.800000001e9"#,
        r#","exp":1800000001.9"#,
        r#","exp":9.2e18"#,
        // In golang-jwt, the time 0 means that there is no limit.
        r#","exp":0"#,
        r#","nbf":0"#,
        r#","nbf":1800000000"#,
        r#","nbf":-1"#,
        r#","iat":1900000000,"aud":5,"x":{"y":[]}"#,
    ] {
        let text = format!(r#"{{"username":"alice","revision":123{more}}}"#);
        assert_eq!(verify_claims(&text), good, "{text}");
    }
    for more in [
        r#","exp":1800000000"#,
        r#","exp":1800000000.9"#,
        r#","exp":-1"#,
        r#","exp":0.5"#,
        r#","exp":null"#,
        r#","exp":"1900000000""#,
        r#","exp":9.3e18"#,
        r#","exp":1e300"#,
        r#","exp":1e999"#,
        r#","exp":1900000000,"exp":1900000000"#,
        r#","nbf":1800000001"#,
        r#","nbf":null"#,
        r#","username":"alice""#,
    ] {
        let text = format!(r#"{{"username":"alice","revision":123{more}}}"#);
        assert_eq!(verify_claims(&text), None, "{text}");
    }
}

#[test]
fn user_and_revision_are_needed() {
    for revision in ["123", "123.0", "1.23e2", "123.9"] {
        let text = format!(r#"{{"username":"alice","revision":{revision}}}"#);
        assert_eq!(verify_claims(&text), Some(claims("alice")));
    }
    let last = r#"{"username":"","revision":9007199254740991}"#;
    let wanted = JwtClaims { username: String::new(), revision: 9_007_199_254_740_991 };
    assert_eq!(verify_claims(last), Some(wanted));
    for text in [
        "",
        "null",
        "{}",
        r#"["alice",123]"#,
        r#"["alice",123,0,0]"#,
        r#"{"username":"alice"}"#,
        r#"{"revision":123}"#,
        r#"{"username":null,"revision":123}"#,
        r#"{"username":5,"revision":123}"#,
        r#"{"username":"alice","revision":"123"}"#,
        r#"{"username":"alice","revision":null}"#,
        r#"{"username":"alice","revision":-1}"#,
        r#"{"username":"alice","revision":9007199254740992}"#,
        r#"{"username":"alice","revision":18446744073709551615}"#,
        r#"{"username":"\ud800","revision":123}"#,
        r#"{"username":"alice","revision":123}}"#,
    ] {
        assert_eq!(verify_claims(text), None, "{text}");
    }
}

#[test]
fn every_changed_bit_is_found() {
    for (method, key, _) in METHODS {
        let provider = provider(method, key);
        let token = sign(&provider, "alice");
        for at in 0..token.len() {
            for bit in 0..8 {
                // Verifying P-521 takes milliseconds in a build without optimisation, so only one
                // bit of each byte is changed.
                if method == "ES512" && bit != at % 8 {
                    continue;
                }
                let mut bytes = token.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let Ok(changed) = String::from_utf8(bytes) else { continue };
                assert_eq!(provider.verify(&changed, NOW), None, "{method} {at} {bit}");
            }
        }
    }
}

#[test]
fn every_cut_token_is_refused() {
    for (method, key, _) in METHODS {
        let provider = provider(method, key);
        let token = sign(&provider, "alice");
        for end in 0..token.len() {
            assert_eq!(provider.verify(&token[..end], NOW), None, "{method} {end}");
            assert_eq!(provider.verify(&token[end + 1..], NOW), None, "{method} {end}");
        }
        for changed in
            [format!("{token}."), format!("{token}="), format!(".{token}"), format!("{token}\n")]
        {
            assert_eq!(provider.verify(&changed, NOW), None);
        }
    }
}

#[test]
fn long_tokens_are_refused() {
    let provider = provider("HS256", "secret");
    let token = |size: usize| {
        let claims = format!(r#"{{"username":"alice","revision":123,"x":"{}"}}"#, "x".repeat(size));
        hs256(HS256, &claims)
    };
    assert!(provider.verify(&token(12_000), NOW).is_some());
    assert!(token(12_300).len() > TOKEN_BYTES_MAX);
    assert_eq!(provider.verify(&token(12_300), NOW), None);
    assert_eq!(provider.verify(&".".repeat(1 << 20), NOW), None);
    let nested = format!(r#"{{"username":"alice","revision":123,"x":{}"#, "[".repeat(12_000));
    assert_eq!(provider.verify(&hs256(HS256, &nested), NOW), None);
    let error = provider.sign(&"x".repeat(13_000), 1, NOW, &SystemRandom::new()).unwrap_err();
    let wanted = "auth: the token for a user name of 13000 bytes is longer than 16384 bytes";
    assert_eq!(error.to_string(), wanted);
}

fn error(options: &str) -> String {
    open(options).map(|_| ()).unwrap_err().to_string()
}

const NAMES: &str = "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, HS256, HS384, \
                     HS512, EdDSA";

#[test]
fn wrong_options_are_named() {
    let opts = "auth: invalid auth options";
    let missing =
        format!("auth: invalid auth signature method: sign-method is missing; allowed are {NAMES}");
    for options in ["", "sign-method=", "priv-key=secret"] {
        assert_eq!(error(options), missing);
    }
    for method in ["none", "rs256", "RS1", " RS256"] {
        let wanted = format!(
            "auth: invalid auth signature method: sign-method={method:?}; allowed are {NAMES}"
        );
        assert_eq!(error(&format!("sign-method={method},priv-key=secret")), wanted);
    }
    for option in ["ttl", "a=b=c", "pub-key==", " "] {
        let options = format!("sign-method=HS256,{option}");
        assert_eq!(error(&options), format!("{opts}: {option:?} is not NAME=VALUE"));
    }
    assert_eq!(error("sign-method=HS256,"), format!("{opts}: \"\" is not NAME=VALUE"));
    let wanted =
        format!("{opts}: unknown option \"key\"; allowed are sign-method, pub-key, priv-key, ttl");
    assert_eq!(error("sign-method=HS256,key=secret"), wanted);
    let wanted = format!("{opts}: ttl is given twice");
    assert_eq!(error("ttl=5m,sign-method=HS256,ttl=5m"), wanted);
    for ttl in ["forever", "0", "0s", "-5m", "+-5m", "5", "5d", "9999999999h"] {
        let wanted = format!("{opts}: ttl={ttl:?} is not a duration above zero, as in 10m");
        assert_eq!(error(&format!("sign-method=HS256,priv-key=secret,ttl={ttl}")), wanted);
    }
}

#[test]
fn missing_keys_are_named() {
    let empty = |_: &str| Ok(Vec::new());
    for (method, _, _) in METHODS {
        let needed = match method {
            "HS256" | "HS384" | "HS512" => "priv-key",
            _ => "priv-key, or pub-key to verify only",
        };
        let wanted = format!("auth: missing key data: {method} needs {needed}");
        assert_eq!(error(&format!("sign-method={method}")), wanted);
        assert_eq!(error(&format!("sign-method={method},priv-key=,pub-key=")), wanted);
        let options = format!("sign-method={method},priv-key=a,pub-key=b");
        assert_eq!(JwtProvider::new(&options, &empty).unwrap_err().to_string(), wanted);
    }
    assert_eq!(
        error("sign-method=HS256,pub-key=rsa.public.pem"),
        "auth: missing key data: HS256 needs priv-key"
    );
    for options in ["pub-key=missing", "priv-key=secret,pub-key=missing"] {
        let text = error(&format!("sign-method=HS256,{options}"));
        assert!(text.starts_with("auth: pub-key=missing cannot be read: "), "{text}");
    }
    let text = error("sign-method=EdDSA,priv-key=missing");
    assert!(text.starts_with("auth: priv-key=missing cannot be read: "), "{text}");
}

#[test]
fn keys_that_do_not_match_are_refused() {
    let wanted = "auth: public and private keys don't match";
    let options = "sign-method=PS256,priv-key=rsa-other.pkcs1.pem,pub-key=rsa.certificate.pem";
    assert_eq!(error(options), wanted);
}

#[test]
fn keys_of_another_kind_are_refused() {
    for (options, wanted) in [
        (
            "sign-method=RS256,priv-key=p256.pkcs8.pem",
            "priv-key=p256.pkcs8.pem is a key for ECDSA on curve P-256, but RS256 needs one for RSA",
        ),
        (
            "sign-method=ES256,priv-key=p384.sec1.pem",
            "priv-key=p384.sec1.pem is a key for ECDSA on curve P-384, but ES256 needs one for \
             ECDSA on curve P-256",
        ),
        (
            "sign-method=EdDSA,pub-key=rsa.public.pem",
            "pub-key=rsa.public.pem is a key for RSA, but EdDSA needs one for Ed25519",
        ),
        (
            "sign-method=ES512,priv-key=p521.sec1.pem,pub-key=ed25519.public.pem",
            "pub-key=ed25519.public.pem is a key for Ed25519, but ES512 needs one for ECDSA on \
             curve P-521",
        ),
    ] {
        assert_eq!(error(options), format!("auth: {wanted}"));
    }
}

#[test]
fn malformed_keys_are_refused() {
    let private = "one private key in PEM, not encrypted: PKCS #1 (RSA), SEC 1 (ECDSA) or PKCS #8";
    let public = "one public key in PEM: a SubjectPublicKeyInfo, a certificate or PKCS #1 (RSA)";
    for (option, file, reason) in [
        ("priv-key", "secret", "it has no PEM block"),
        ("priv-key", "rsa.encrypted.pem", "it is encrypted"),
        ("priv-key", "rsa.certificate.pem", "not a key of a known kind"),
        ("priv-key", "rsa.public.pem", "not a key of a known kind"),
        ("priv-key", "ed448.pkcs8.pem", "not a key of a known kind"),
        (
            "priv-key",
            "rsa.public.pkcs1.pem",
            "not a valid RSA key of 2048 to 4096 bits with an exponent of at least 65537",
        ),
        (
            "priv-key",
            "rsa-1024.pkcs1.pem",
            "not a valid RSA key of 2048 to 4096 bits with an exponent of at least 65537",
        ),
        ("priv-key", "k256.sec1.pem", "its curve is not P-256, P-384 or P-521"),
        ("pub-key", "secret", "it has no PEM block"),
        ("pub-key", "rsa.pkcs1.pem", "not a key of a known kind"),
        ("pub-key", "rsa.pkcs8.pem", "not a key of a known kind"),
        ("pub-key", "p256.sec1.pem", "not a key of a known kind"),
        ("pub-key", "rsa-1024.public.pem", "not a valid RSA key of 2048 to 8192 bits"),
    ] {
        let allowed = if option == "priv-key" { private } else { public };
        let wanted = format!("auth: {option}={file} is malformed: {reason}; expected {allowed}");
        assert_eq!(error(&format!("sign-method=RS256,{option}={file}")), wanted);
    }
}

/// Changes one bit of each key file, or cuts the file off, at every seventh byte. Reading the file
/// must return an error or a key, and must not panic.
#[test]
fn damaged_keys_are_no_trap() {
    for (method, key, public_keys) in METHODS.into_iter().filter(|(_, key, _)| *key != "secret") {
        let files = public_keys.iter().map(|file| ("pub-key", *file));
        for (option, file) in files.chain([("priv-key", key)]) {
            let whole = read_key(file).unwrap();
            let options = format!("sign-method={method},{option}={file}");
            for at in (0..whole.len()).step_by(7) {
                let mut changed = whole.clone();
                changed[at] ^= 1;
                let _ = JwtProvider::new(&options, &|_| Ok(changed.clone()));
                let _ = JwtProvider::new(&options, &|_| Ok(whole[..at].to_vec()));
            }
        }
    }
}

#[test]
fn no_key_is_in_debug() {
    for (method, key, _) in METHODS {
        let text = format!("{:?}", provider(method, key));
        let wanted = format!(
            "JwtProvider {{ method: {method:?}, ttl_seconds: 300, is_verify_only: false, .. }}"
        );
        assert_eq!(text, wanted);
    }
}

proptest! {
    #[test]
    fn garbage_is_no_token(text in prop_oneof![
        ".{0,200}",
        "[A-Za-z0-9_-]{0,60}[.][A-Za-z0-9_-]{0,60}[.][A-Za-z0-9_-]{0,60}",
    ]) {
        for (method, key) in [("HS256", "secret"), ("ES512", "p521.sec1.pem")] {
            prop_assert_eq!(provider(method, key).verify(&text, NOW), None);
        }
    }

    #[test]
    fn signed_garbage_does_no_harm(header in ".{0,40}", claims in any::<Vec<u8>>()) {
        let claims = String::from_utf8_lossy(&claims);
        prop_assert_eq!(verify_claims(&claims), None);
        let provider = provider("HS256", "secret");
        prop_assert_eq!(provider.verify(&hs256(&header, &claims), NOW), None);
    }

    #[test]
    fn every_user_name_comes_back(name in ".{0,100}", revision in 0..1_u64 << 53) {
        let provider = provider("EdDSA", "ed25519.pkcs8.pem");
        let token = provider.sign(&name, revision, NOW, &SystemRandom::new()).unwrap();
        let wanted = JwtClaims { username: name, revision };
        prop_assert_eq!(provider.verify(&token, NOW), Some(wanted));
    }

    #[test]
    fn key_files_of_any_bytes_do_no_harm(file in any::<Vec<u8>>(), is_pem: bool) {
        let pem = |file: &[u8]| {
            let body = base64::engine::general_purpose::STANDARD.encode(file);
            format!("-----BEGIN X-----\n{body}\n-----END X-----\n").into_bytes()
        };
        let file = if is_pem { pem(&file) } else { file };
        for option in ["priv-key", "pub-key"] {
            let options = format!("sign-method=ES256,{option}=x");
            prop_assert!(JwtProvider::new(&options, &|_| Ok(file.clone())).is_err());
        }
    }
}

/// Prints how long signing and verifying take with each method. Run it with
/// `--release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn costs() {
    let random = SystemRandom::new();
    for (method, key, _) in METHODS {
        let provider = provider(method, key);
        let token = sign(&provider, "alice");
        let mean_us = |rounds: u32, work: &dyn Fn()| {
            let start = std::time::Instant::now();
            (0..rounds).for_each(|_| work());
            start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
        };
        let sign_us = mean_us(100, &|| {
            std::hint::black_box(provider.sign("alice", 123, NOW, &random).unwrap());
        });
        let verify_us = mean_us(500, &|| {
            std::hint::black_box(provider.verify(&token, NOW).unwrap());
        });
        println!("{method}: sign {sign_us:.1} us, verify {verify_us:.1} us");
    }
}
