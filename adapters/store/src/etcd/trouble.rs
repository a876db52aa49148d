//! What can be wrong with an etcd or on the way to it, in words for whoever has to put it right.

use std::time::Duration;

use tonic::{Code, Status};

/// Why etcd did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdTrouble {
    /// Nobody answers at any endpoint.
    #[error("etcd cannot be reached at {endpoints}: {reason}")]
    Unreachable {
        /// All of them.
        endpoints: String,
        /// What came of the last one.
        reason: String,
    },
    /// More than half of the members are needed, and are not there.
    #[error("etcd has no leader: too few of its members run, or they do not reach one another")]
    NoQuorum,
    /// The NOSPACE alarm.
    #[error(
        "etcd is out of space (its NOSPACE alarm) and takes no writes: compact and defragment it, or give it more with \
         --quota-backend-bytes, and then disarm the alarm"
    )]
    NoSpace,
    /// The CORRUPT alarm.
    #[error("etcd has found its members to differ (its CORRUPT alarm) and serves nothing: restore it from a backup")]
    Corrupt,
    /// No answer in time.
    #[error("etcd did not answer within {} ms: its disk, its network or a member is too slow", .0.as_millis())]
    TooSlow(Duration),
    /// It answers that it has timed out itself.
    #[error("etcd is too slow, it says: {0}")]
    TimedOut(String),
    /// It has more to do than it takes on.
    #[error("etcd is overloaded, it says: {0}")]
    Overloaded(String),
    /// Wrong user or password.
    #[error("etcd does not let the user {user:?} in with the password that was given")]
    Authentication {
        /// The user.
        user: String,
    },
    /// No user where one is needed.
    #[error("etcd asks for a user and a password, and none was given")]
    CredentialsMissing,
    /// A role is missing.
    #[error("etcd does not allow its user to read and write there: grant it a role with readwrite for the prefix")]
    Permission,
    /// Another cluster answers.
    #[error("the etcd cluster {found:016x} answers in place of {expected:016x}")]
    OtherCluster {
        /// That answers.
        found: u64,
        /// That has the data.
        expected: u64,
    },
    /// What is under the prefix is not what was opened.
    #[error("the data under the prefix was removed or replaced while this store was open")]
    Replaced,
    /// An answer that etcd does not give.
    #[error("etcd answered what it never should: {0}")]
    Malformed(String),
    /// Any other answer.
    #[error("etcd answered {code:?}: {message}")]
    Other {
        /// The status code.
        code: String,
        /// Its text.
        message: String,
    },
}

impl EtcdTrouble {
    /// Whether it may pass by itself, so that asking again, here or at another member, is worth it.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NoQuorum
            | Self::TooSlow(_)
            | Self::TimedOut(_)
            | Self::Overloaded(_)
            | Self::Other { .. } => true,
            Self::NoSpace
            | Self::Corrupt
            | Self::Authentication { .. }
            | Self::CredentialsMissing
            | Self::Permission
            | Self::OtherCluster { .. }
            | Self::Replaced
            | Self::Malformed(_) => false,
        }
    }
}

/// What an answer other than the one hoped for entails.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) trouble: EtcdTrouble,
    /// Whether the request, had it been a write, is known not to have been carried out.
    pub(super) is_refusal: bool,
    /// Whether another member may do better.
    pub(super) leaves_member: bool,
    /// Whether a fresh token may help.
    pub(super) token_is_stale: bool,
}

impl Judged {
    /// Surely not carried out.
    pub(super) fn refusal(trouble: EtcdTrouble) -> Self {
        Self { trouble, is_refusal: true, leaves_member: false, token_is_stale: false }
    }

    fn unknown(trouble: EtcdTrouble) -> Self {
        Self { is_refusal: false, ..Self::refusal(trouble) }
    }

    /// Another cluster answers: what it has done is done there.
    pub(super) fn foreign(trouble: EtcdTrouble) -> Self {
        Self::unknown(trouble).elsewhere()
    }

    /// No answer within that time.
    pub(super) fn silence(limit: Duration) -> Self {
        Self::unknown(EtcdTrouble::TooSlow(limit)).elsewhere()
    }

    fn elsewhere(self) -> Self {
        Self { leaves_member: true, ..self }
    }

    fn stale_token(self) -> Self {
        Self { token_is_stale: true, ..self }
    }
}

/// Reads a status of etcd's; the texts are those of its `rpctypes`, which its own client goes by, too.
pub(super) fn judge(status: &Status, user: Option<&str>) -> Judged {
    let text = status.message();
    let says = |part: &str| text.contains(part);
    let user = || user.unwrap_or_default().to_owned();
    match status.code() {
        Code::Unavailable if says("etcdserver: no leader") => Judged::refusal(EtcdTrouble::NoQuorum).elsewhere(),
        Code::Unavailable if says("etcdserver: ") && says("timed out") => {
            Judged::unknown(EtcdTrouble::TimedOut(text.to_owned())).elsewhere()
        }
        // Not a refusal: the write that reaches the quota is carried out, and answered like this.
        Code::ResourceExhausted if says("database space exceeded") => Judged::unknown(EtcdTrouble::NoSpace),
        Code::ResourceExhausted if says("too many requests") => {
            Judged::refusal(EtcdTrouble::Overloaded(text.to_owned()))
        }
        Code::DataLoss if says("corrupt") => Judged::unknown(EtcdTrouble::Corrupt).elsewhere(),
        Code::Unauthenticated => Judged::refusal(EtcdTrouble::Authentication { user: user() }).stale_token(),
        Code::InvalidArgument if says("revision of auth store is old") => {
            Judged::refusal(EtcdTrouble::Authentication { user: user() }).stale_token()
        }
        Code::InvalidArgument if says("authentication failed") => {
            Judged::refusal(EtcdTrouble::Authentication { user: user() })
        }
        // To a request without a token; one that was given before authentication was switched on has none either.
        Code::InvalidArgument if says("user name is empty") => {
            Judged::refusal(EtcdTrouble::CredentialsMissing).stale_token()
        }
        Code::PermissionDenied => Judged::refusal(EtcdTrouble::Permission),
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => Judged::refusal(other(status)),
        // The connection broke, or the member is going down.
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss
        | Code::ResourceExhausted
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Unimplemented
        | Code::Ok => Judged::unknown(other(status)).elsewhere(),
    }
}

fn other(status: &Status) -> EtcdTrouble {
    EtcdTrouble::Other { code: format!("{:?}", status.code()), message: status.message().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_surely_not_carried_out_counts_as_refused() {
        let judged = |code, text: &str| judge(&Status::new(code, text), Some("root"));
        let no_leader = judged(Code::Unavailable, "etcdserver: no leader");
        assert!(no_leader.is_refusal && no_leader.leaves_member && no_leader.trouble.may_pass());
        let timed_out = judged(Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost");
        assert!(!timed_out.is_refusal && matches!(timed_out.trouble, EtcdTrouble::TimedOut(_)));
        let full = judged(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert_eq!((full.is_refusal, full.trouble), (false, EtcdTrouble::NoSpace));
        let broken = judged(Code::Unavailable, "transport error");
        assert!(!broken.is_refusal && broken.leaves_member);
        let stale = judged(Code::Unauthenticated, "etcdserver: invalid auth token");
        assert!(stale.is_refusal && stale.token_is_stale);
    }
}
