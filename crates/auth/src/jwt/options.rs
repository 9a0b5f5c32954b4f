//! The options after `jwt,` in `--auth-token`: `sign-method=RS256,priv-key=FILE,ttl=5m`.

use std::io;
use std::time::Duration;

use clearlane_mvcc::auto_compaction::nanoseconds;

use super::error::JwtError;
use super::method::{KeyKind, Method};

const TTL_DEFAULT: Duration = Duration::from_mins(5);

#[derive(Default)]
pub(super) struct Options<'a> {
    method: Option<&'a str>,
    public_key: Option<&'a str>,
    private_key: Option<&'a str>,
    ttl: Option<&'a str>,
}

impl<'a> Options<'a> {
    /// Parses the options. As in etcd, an empty value is the same as a missing option.
    pub(super) fn parse(text: &'a str) -> Result<Options<'a>, JwtError> {
        let mut options = Options::default();
        for option in text.split(',').filter(|_| !text.is_empty()) {
            let pair = option.split_once('=').filter(|(_, value)| !value.contains('='));
            let (name, value) = pair.ok_or_else(|| JwtError::MalformedOption(option.to_owned()))?;
            let slot = match name {
                "sign-method" => &mut options.method,
                "pub-key" => &mut options.public_key,
                "priv-key" => &mut options.private_key,
                "ttl" => &mut options.ttl,
                _ => return Err(JwtError::UnknownOption(name.to_owned())),
            };
            if slot.replace(value).is_some() {
                return Err(JwtError::RepeatedOption(name.to_owned()));
            }
        }
        Ok(options)
    }

    pub(super) fn method(&self) -> Result<Method, JwtError> {
        let allowed = Method::all_names;
        match self.method {
            None | Some("") => Err(JwtError::MissingMethod { allowed: allowed() }),
            Some(name) => Method::parse(name).ok_or_else(|| JwtError::UnknownMethod {
                method: name.to_owned(),
                allowed: allowed(),
            }),
        }
    }

    /// Returns the TTL in whole seconds, rounded up, because the times in a token are whole
    /// seconds. Fails if the TTL is not a duration above zero.
    pub(super) fn ttl_seconds(&self) -> Result<u64, JwtError> {
        let text = match self.ttl {
            None | Some("") => return Ok(TTL_DEFAULT.as_secs()),
            Some(text) => text,
        };
        let ttl = nanoseconds(text.strip_prefix('+').unwrap_or(text));
        match ttl.map(|ttl| ttl.div_ceil(1_000_000_000)) {
            None | Some(0) => Err(JwtError::Ttl(text.to_owned())),
            Some(seconds) => Ok(seconds),
        }
    }

    /// Reads the file of the private key. Returns `None` if the option is missing or empty, or if
    /// the file is empty.
    pub(super) fn private_key(
        &self,
        read_file: ReadFile<'_>,
    ) -> Result<Option<KeyFile<'a>>, JwtError> {
        KeyFile::read("priv-key", self.private_key, read_file)
    }

    /// Reads the file of the public key. Returns `None` if the option is missing or empty, or if
    /// the file is empty.
    pub(super) fn public_key(
        &self,
        read_file: ReadFile<'_>,
    ) -> Result<Option<KeyFile<'a>>, JwtError> {
        KeyFile::read("pub-key", self.public_key, read_file)
    }
}

pub(super) type ReadFile<'a> = &'a dyn Fn(&str) -> io::Result<Vec<u8>>;

pub(super) struct KeyFile<'a> {
    option: &'static str,
    path: &'a str,
    pub(super) bytes: Vec<u8>,
}

impl<'a> KeyFile<'a> {
    fn read(
        option: &'static str,
        path: Option<&'a str>,
        read_file: ReadFile<'_>,
    ) -> Result<Option<KeyFile<'a>>, JwtError> {
        let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(None) };
        let unreadable = |error| JwtError::UnreadableKey { option, path: path.to_owned(), error };
        let bytes = read_file(path).map_err(unreadable)?;
        Ok((!bytes.is_empty()).then_some(KeyFile { option, path, bytes }))
    }

    pub(super) fn parse<K>(
        &self,
        parse: impl FnOnce(&[u8]) -> Result<K, &'static str>,
        allowed: &'static str,
    ) -> Result<K, JwtError> {
        parse(&self.bytes).map_err(|reason| JwtError::MalformedKey {
            option: self.option,
            path: self.path.to_owned(),
            reason,
            allowed,
        })
    }

    pub(super) fn of_other_kind(&self, method: Method, found: KeyKind) -> JwtError {
        JwtError::KeyOfOtherKind {
            option: self.option,
            path: self.path.to_owned(),
            method: method.name(),
            found: found.to_string(),
            needed: method.key_kind().map(|kind| kind.to_string()).unwrap_or_default(),
        }
    }
}
