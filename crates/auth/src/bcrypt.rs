//! bcrypt in steps: between two steps the thread may let another thread run.
//!
//! The password and the salt are mixed into the tables of the Blowfish cipher 2^cost times. Each of
//! these rounds takes about 50 microseconds. Because of the salt, hashes cannot be computed in
//! advance. At the end, a fixed text is encrypted with the tables.
//!
//! ```text
//!   $2b$10$yqOPt6vOJ3o7Lr6Hgfo1QeQ9TnE7iRmdWwsN6fTQWtd5Z3oQXbEAu
//!    │   │  └─ 22 letters: the salt  └─ 31 letters: the text, encrypted
//!    │   └─ cost
//!    └─ version: 2a, 2b, 2x and 2y are the same here
//! ```

use std::fmt;

use base64::Engine as _;
use base64::alphabet::BCRYPT;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::NO_PAD;
use blowfish::Blowfish;
use subtle::ConstantTimeEq;

pub const SALT_BYTES: usize = 16;
/// The text that is encrypted: `OrpheanBeholderScryDoubt`.
const TEXT: [u8; 24] = *b"OrpheanBeholderScryDoubt";
/// Number of bytes of the encrypted text that a hash contains. bcrypt omits the last of the 24
/// bytes.
const DIGEST_BYTES: usize = 23;
/// Maximum number of bytes of the key that is mixed in. The key is the password, followed by a zero
/// byte. Further bytes are ignored.
const KEY_BYTES_MAX: usize = 72;
const COSTS: std::ops::RangeInclusive<u32> = 4..=31;
/// Number of rounds in one step. A step takes about half a millisecond. After each step the thread
/// may let another thread run.
const ROUNDS_PER_STEP: u32 = 8;
const SALT_LETTERS: usize = 22;
const DIGEST_LETTERS: usize = 31;
const BASE64: GeneralPurpose = GeneralPurpose::new(&BCRYPT, NO_PAD);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BcryptHash {
    cost: u32,
    salt: [u8; SALT_BYTES],
    digest: [u8; DIGEST_BYTES],
}

impl BcryptHash {
    /// Hashes a password. Returns `None` if the cost is less than 4 or more than 31. Calls `pause`
    /// after each step; `pause` may unwind.
    pub(crate) fn compute(
        password: &[u8],
        cost: u32,
        salt: [u8; SALT_BYTES],
        pause: &mut dyn FnMut(),
    ) -> Option<BcryptHash> {
        if !COSTS.contains(&cost) {
            return None;
        }
        let digest = digest(password, cost, salt, pause);
        Some(BcryptHash { cost, salt, digest })
    }

    /// Parses a hash. Returns `None` if the text is not a bcrypt hash.
    pub(crate) fn parse(text: &str) -> Option<BcryptHash> {
        let mut parts = text.strip_prefix('$')?.split('$');
        let (version, cost, letters) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || !matches!(version, "2a" | "2b" | "2x" | "2y") {
            return None;
        }
        let has_two_digits = cost.len() == 2 && cost.bytes().all(|digit| digit.is_ascii_digit());
        let cost = cost.parse().ok().filter(|cost| has_two_digits && COSTS.contains(cost))?;
        if letters.len() != SALT_LETTERS + DIGEST_LETTERS {
            return None;
        }
        let (salt, digest) = letters.split_at_checked(SALT_LETTERS)?;
        let salt = BASE64.decode(salt).ok()?.try_into().ok()?;
        let digest = BASE64.decode(digest).ok()?.try_into().ok()?;
        Some(BcryptHash { cost, salt, digest })
    }

    /// Checks a password. The check takes the same time for a wrong password as for the right one.
    pub(crate) fn verify(&self, password: &[u8], pause: &mut dyn FnMut()) -> bool {
        let digest = digest(password, self.cost, self.salt, pause);
        digest.ct_eq(&self.digest).into()
    }
}

impl fmt::Display for BcryptHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BcryptHash { cost, salt, digest } = self;
        write!(f, "$2b${cost:02}${}{}", BASE64.encode(salt), BASE64.encode(digest))
    }
}

fn digest(
    password: &[u8],
    cost: u32,
    salt: [u8; SALT_BYTES],
    pause: &mut dyn FnMut(),
) -> [u8; DIGEST_BYTES] {
    let key: Vec<u8> = password.iter().copied().chain([0]).take(KEY_BYTES_MAX).collect();
    let mut cipher = Blowfish::bc_init_state();
    cipher.salted_expand_key(&salt, &key);
    for round in 0..1u32 << cost {
        cipher.bc_expand_key(&key);
        cipher.bc_expand_key(&salt);
        if round % ROUNDS_PER_STEP == ROUNDS_PER_STEP - 1 {
            pause();
        }
    }
    let mut text = TEXT;
    for block in text.chunks_exact_mut(8) {
        let (left, right) = block.split_at_mut(4);
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let mut words = [word(left), word(right)];
        for _ in 0..64 {
            words = cipher.bc_encrypt(words);
        }
        left.copy_from_slice(&words[0].to_be_bytes());
        right.copy_from_slice(&words[1].to_be_bytes());
    }
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(&text[..DIGEST_BYTES]);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_implementation_computes_the_same() {
        let long = [b'x'; 80];
        let passwords: [&[u8]; 6] = [b"", b"a", b"secret", &long[..71], &long[..72], &long];
        for (number, password) in passwords.into_iter().enumerate() {
            let (cost, salt) = (4 + number as u32 % 3, [number as u8 * 37; SALT_BYTES]);
            let theirs = bcrypt::hash_with_salt(password, cost, salt).unwrap().to_string();
            let ours = BcryptHash::compute(password, cost, salt, &mut || ()).unwrap();
            assert_eq!(ours.to_string(), theirs);
            assert_eq!(BcryptHash::parse(&theirs), Some(ours));
            assert!(ours.verify(password, &mut || ()));
            assert!(!ours.verify(b"another", &mut || ()));
        }
    }

    #[test]
    fn each_step_ends_in_a_pause() {
        let mut pauses = 0;
        BcryptHash::compute(b"secret", 5, [1; SALT_BYTES], &mut || pauses += 1).unwrap();
        assert_eq!(pauses, 32 / ROUNDS_PER_STEP);
    }

    #[test]
    fn what_is_no_hash_is_none() {
        let good = BcryptHash::compute(b"secret", 4, [1; SALT_BYTES], &mut || ()).unwrap();
        let good = good.to_string();
        for letters in 0..good.len() {
            assert_eq!(BcryptHash::parse(&good[..letters]), None);
        }
        let replaced = |from: &str, to: &str| BcryptHash::parse(&good.replacen(from, to, 1));
        assert!(replaced("$2b$", "$2a$").is_some());
        for version in ["$1b$", "$3b$", "$2c$"] {
            assert_eq!(replaced("$2b$", version), None);
        }
        for cost in ["$03$", "$32$", "$4$", "$004$", "$+4$"] {
            assert_eq!(replaced("$04$", cost), None);
        }
        assert_eq!(BcryptHash::parse(&format!("{good}$")), None);
        assert_eq!(BcryptHash::parse(&format!("{good}a")), None);
        assert_eq!(BcryptHash::parse(&"é".repeat(60)), None);
        assert_eq!(BcryptHash::compute(b"secret", 3, [1; SALT_BYTES], &mut || ()), None);
        assert_eq!(BcryptHash::compute(b"secret", 32, [1; SALT_BYTES], &mut || ()), None);
    }
}
