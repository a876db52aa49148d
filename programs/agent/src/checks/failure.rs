//! Why a probe did not come to a verdict, and whose fault that is.

use std::fs::File;
use std::io;

use nix::errno::Errno;

/// Why a probe ended without an answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// What was asked did not answer as it should.
    Application(String),
    /// This process, or the machine, has no file descriptor left to ask with.
    OutOfFiles(io::Error),
}

impl Failure {
    /// The same, told of `what` was tried.
    pub(super) fn of(self, what: &str) -> Self {
        match self {
            Self::Application(reason) => Self::Application(format!("{what}: {reason}")),
            shortage @ Self::OutOfFiles(_) => shortage,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if is_shortage(&error) {
            return Self::OutOfFiles(error);
        }
        // A resolver that cannot open its files says that the name is unknown.
        match File::open("/dev/null") {
            Err(shortage) if error.raw_os_error().is_none() && is_shortage(&shortage) => Self::OutOfFiles(shortage),
            Ok(_) | Err(_) => Self::Application(error.to_string()),
        }
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Application(reason)
    }
}

fn is_shortage(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(number, Some(Errno::EMFILE | Errno::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_files_is_told_from_a_refusal() {
        for number in [Errno::EMFILE, Errno::ENFILE] {
            let failure = Failure::from(io::Error::from(number)).of("TCP connect");
            assert!(matches!(failure, Failure::OutOfFiles(_)), "{failure:?}");
        }
        let failure = Failure::from(io::Error::from(Errno::ECONNREFUSED)).of("TCP connect");
        assert!(matches!(&failure, Failure::Application(text) if text.starts_with("TCP connect: Conn")), "{failure:?}");
    }
}
