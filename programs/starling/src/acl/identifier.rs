//! Identifiers as people write them: so much of one as no other begins with.

use anyhow::bail;
use serde_json::Value;

use crate::client::{Call, Client};

/// Characters of a whole one.
const WHOLE: usize = 36;

/// What is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Token,
    Policy,
    Role,
    BindingRule,
}

impl Kind {
    /// As the API and people call it.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Policy => "policy",
            Self::Role => "role",
            Self::BindingRule => "binding rule",
        }
    }

    /// Where all of them are listed, and which field identifies one.
    fn list(self) -> (&'static str, &'static str) {
        match self {
            Self::Token => ("/v1/acl/tokens", "AccessorID"),
            Self::Policy => ("/v1/acl/policies", "ID"),
            Self::Role => ("/v1/acl/roles", "ID"),
            Self::BindingRule => ("/v1/acl/binding-rules", "ID"),
        }
    }

    /// The whole identifier of the one that alone begins so.
    ///
    /// # Errors
    /// When none does or several do, or they cannot be listed.
    pub(super) async fn whole(self, client: &Client, beginning: &str) -> anyhow::Result<String> {
        if beginning.len() >= WHOLE {
            return Ok(beginning.to_owned());
        }
        let (path, field) = self.list();
        let all: Value = client.read(Call::get(path)).await?;
        self.only(all.as_array().into_iter().flatten().filter_map(|one| one[field].as_str()), beginning)
    }

    fn only<'a>(self, all: impl Iterator<Item = &'a str>, beginning: &str) -> anyhow::Result<String> {
        let what = self.what();
        if beginning.is_empty() {
            bail!("the ID of the {what} is empty");
        }
        let lower = beginning.to_ascii_lowercase();
        let mut found = all.filter(|id| id.starts_with(&lower));
        match (found.next(), found.count()) {
            (None, _) => bail!("there is no ACL {what} whose ID begins with {beginning:?}"),
            (Some(id), 0) => Ok(id.to_owned()),
            (Some(_), others) => {
                bail!("the IDs of {} ACL {what} objects begin with {beginning:?}: write more of it", others + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_known_by_what_no_other_begins_with() {
        let all = ["986193b5-e2b5-eb26-6264-b524ea60cc6d", "98acc965-df4b-5a99-58cb-3250930c6324"];
        let only = |beginning: &str| Kind::Token.only(all.into_iter(), beginning).map_err(|error| error.to_string());
        assert_eq!(only("986").as_deref(), Ok(all[0]));
        assert_eq!(only("98A").as_deref(), Ok(all[1]));
        assert_eq!(only("98"), Err("the IDs of 2 ACL token objects begin with \"98\": write more of it".to_owned()));
        assert!(only("7").is_err_and(|error| error.contains("no ACL token")));
        assert!(only("").is_err());
    }
}
