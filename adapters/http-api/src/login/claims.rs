//! What a token says, once it is known who says it.

use jsonwebtoken::{DecodingKey, Header, Validation, decode, decode_header};
use serde_json::Value;
use starling_model::UnixSeconds;

use super::settings::JwtSettings;
use super::{LoginRefusal, claim};

/// The header of a token that is signed by an algorithm that the method allows.
pub(super) fn header(token: &str, settings: &JwtSettings) -> Result<Header, LoginRefusal> {
    let header = decode_header(token).map_err(|_| LoginRefusal::Token("it is no signed JSON Web Token"))?;
    if !settings.algorithms.contains(&header.alg) {
        return Err(LoginRefusal::Token("it is signed by an algorithm that the auth method does not allow"));
    }
    Ok(header)
}

/// What one of the keys has signed, if it holds now and here.
pub(super) fn verified(
    token: &str,
    header: &Header,
    keys: &[DecodingKey],
    settings: &JwtSettings,
    now: UnixSeconds,
) -> Result<Value, LoginRefusal> {
    let mut validation = Validation::new(header.alg);
    // What is signed is judged below, by the method's own settings.
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    let mut signed = keys.iter().filter_map(|key| decode::<Value>(token, key, &validation).ok());
    let claims = signed.next().ok_or(LoginRefusal::Token("no key of the auth method has signed it"))?.claims;
    in_time(&claims, settings, now)?;
    if let Some(issuer) = &settings.issuer
        && claims["iss"] != issuer.as_str()
    {
        return Err(LoginRefusal::Claims("its issuer is another than BoundIssuer".to_owned()));
    }
    let is_for_us = match claim(&claims, "aud") {
        _ if settings.audiences.is_empty() => true,
        Some(Value::String(one)) => settings.audiences.contains(one),
        Some(Value::Array(several)) => {
            several.iter().filter_map(Value::as_str).any(|one| settings.audiences.iter().any(|own| own == one))
        }
        Some(_) | None => false,
    };
    if is_for_us {
        return Ok(claims);
    }
    Err(LoginRefusal::Claims("its audience is none of BoundAudiences".to_owned()))
}

/// Refuses a token that is over, has not begun, or says nothing of time.
fn in_time(claims: &Value, settings: &JwtSettings, now: UnixSeconds) -> Result<(), LoginRefusal> {
    let wrong = |text: &str| LoginRefusal::Claims(text.to_owned());
    // Seconds since 1970, of which fractions do not count (RFC 7519, section 2).
    let at = |name: &str| match claim(claims, name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let seconds = value.as_f64().filter(|seconds| (0.0..=9e15).contains(seconds));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "within the range just checked"
            )]
            let seconds = seconds.map(|seconds| seconds as u64);
            seconds.map(Some).ok_or_else(|| LoginRefusal::Claims(format!("{name} is no time")))
        }
    };
    let (issued, begins, ends) = (at("iat")?, at("nbf")?, at("exp")?);
    let (skew, now) = (settings.skew.as_secs(), now.0);
    let latest_known = issued.max(begins);
    let ends = match (ends, latest_known) {
        (Some(ends), _) => ends,
        (None, Some(known)) => known.saturating_add(settings.expiration_leeway.as_secs()),
        (None, None) => return Err(wrong("it has none of iat, nbf and exp")),
    };
    let begins = begins.or(issued).unwrap_or_else(|| ends.saturating_sub(settings.not_before_leeway.as_secs()));
    if now > ends.saturating_add(skew) {
        return Err(wrong("it has expired"));
    }
    if now.saturating_add(skew) < begins || issued.is_some_and(|issued| now.saturating_add(skew) < issued) {
        return Err(wrong("it is not good yet"));
    }
    Ok(())
}
