//! Tokens and passwords: `--auth-token`, `--auth-token-ttl`, `--bcrypt-cost`.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use clearlane_auth::password::BCRYPT_COST;
use clearlane_auth::{AuthConfig, JwtProvider, TokenConfig};

use super::arguments::FlagReader;
use super::error::ConfigError;

const BCRYPT_COSTS: RangeInclusive<u64> = 4..=31;
/// The default token TTL of etcd, which also applies if the flag is 0.
const SIMPLE_TOKEN_TTL: Duration = Duration::from_secs(300);

pub(super) fn auth(
    flags: &FlagReader,
    warnings: &mut Vec<String>,
) -> Result<AuthConfig, ConfigError> {
    Ok(AuthConfig { tokens: tokens(flags)?, bcrypt_cost: bcrypt_cost(flags, warnings) })
}

fn tokens(flags: &FlagReader) -> Result<TokenConfig, ConfigError> {
    let text = flags.text("auth-token");
    if text == "simple" {
        let ttl = Duration::from_secs(flags.count("auth-token-ttl"));
        let ttl = if ttl.is_zero() { SIMPLE_TOKEN_TTL } else { ttl };
        return Ok(TokenConfig::Simple { ttl });
    }
    let Some(options) = text.strip_prefix("jwt,") else {
        return Err(ConfigError::fatal(format!(
            "--auth-token={text:?} is not known: allowed are simple, and \
             jwt,sign-method=METHOD,pub-key=FILE,priv-key=FILE,ttl=TIME"
        )));
    };
    let provider = JwtProvider::new(options, &|path| std::fs::read(path));
    let provider =
        provider.map_err(|error| ConfigError::fatal(format!("--auth-token: {error}")))?;
    Ok(TokenConfig::Jwt(Arc::new(provider)))
}

/// Returns the bcrypt cost. As in etcd, a cost that bcrypt does not support is replaced by the
/// default, with a warning.
fn bcrypt_cost(flags: &FlagReader, warnings: &mut Vec<String>) -> u32 {
    let cost = flags.count("bcrypt-cost");
    if !BCRYPT_COSTS.contains(&cost) {
        let (least, most) = BCRYPT_COSTS.into_inner();
        warnings
            .push(format!("--bcrypt-cost={cost} is not {least} to {most}: using {BCRYPT_COST}"));
        return BCRYPT_COST;
    }
    u32::try_from(cost).unwrap_or(BCRYPT_COST)
}
