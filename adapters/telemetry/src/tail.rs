//! Log lines for whoever follows the log at the moment, in the form in which Consul's agents write theirs.
//!
//! Who follows hears what is logged, and no more: the process's own filter comes first.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;

use crate::LogFormat;

/// Who follows the log at a time: each costs a line's text per line.
pub const FOLLOWERS_MAX: usize = 16;

/// Lines that wait for a follower; past this it is too slow, and misses some.
const LINES_WAITING_MAX: usize = 512;

struct Follower {
    level: Level,
    format: LogFormat,
    lines: mpsc::Sender<String>,
}

static FOLLOWERS: Mutex<Vec<Follower>> = Mutex::new(Vec::new());
/// How many there are, so that a line costs nothing where there is none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The log from now on, up to `level`; it ends when the receiver is dropped. `None` if there are [`FOLLOWERS_MAX`] already.
#[must_use]
pub fn follow(level: Level, format: LogFormat) -> Option<mpsc::Receiver<String>> {
    let mut followers = FOLLOWERS.lock().unwrap_or_else(PoisonError::into_inner);
    followers.retain(|follower| !follower.lines.is_closed());
    if followers.len() >= FOLLOWERS_MAX {
        return None;
    }
    let (lines, following) = mpsc::channel(LINES_WAITING_MAX);
    followers.push(Follower { level, format, lines });
    COUNT.store(followers.len(), Ordering::Relaxed);
    Some(following)
}

/// Hands lines to followers.
pub(crate) struct Followed;

impl<S: Subscriber> Layer<S> for Followed {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if COUNT.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut said = Said::default();
        event.record(&mut said);
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let mut followers = FOLLOWERS.lock().unwrap_or_else(PoisonError::into_inner);
        followers.retain(|follower| !follower.lines.is_closed());
        COUNT.store(followers.len(), Ordering::Relaxed);
        for follower in followers.iter().filter(|follower| level <= follower.level) {
            let line = match follower.format {
                LogFormat::Text => said.as_text(level, target),
                LogFormat::Json => said.as_json(level, target),
            };
            // Who is too slow misses it.
            let _ = follower.lines.try_send(line);
        }
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.message, "{value:?}");
        } else {
            self.fields.push((field.name(), format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

fn now() -> String {
    let mut text = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

impl Said {
    fn as_text(&self, level: Level, target: &str) -> String {
        let level = format!("[{level}]");
        let mut line = format!("{} {level:<7} {target}: {}", now(), self.message);
        for (name, value) in &self.fields {
            let _ = write!(line, " {name}={value}");
        }
        // One event is one line.
        line.replace('\n', " ")
    }

    fn as_json(&self, level: Level, target: &str) -> String {
        let own = [
            ("@level", level.to_string().to_ascii_lowercase()),
            ("@message", self.message.clone()),
            ("@module", target.to_owned()),
            ("@timestamp", now()),
        ];
        let fields = self.fields.iter().map(|(name, value)| (*name, value.clone()));
        let line: Map<_, _> =
            own.into_iter().chain(fields).map(|(name, text)| (name.to_owned(), text.into())).collect();
        Value::Object(line).to_string()
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn who_follows_hears_what_is_logged_up_to_a_level_and_a_limit_holds() {
        let mut text = follow(Level::INFO, LogFormat::Text).expect("a place");
        let mut json = follow(Level::DEBUG, LogFormat::Json).expect("a place");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Followed), || {
            tracing::info!(node = "n1", "two\nlines");
            tracing::debug!("detail");
        });
        let line = text.try_recv().expect("a line");
        assert!(line.contains(" [INFO]  ") && line.ends_with(": two lines node=n1"), "{line}");
        assert!(text.try_recv().is_err(), "more than it asked for");
        let first: Value = serde_json::from_str(&json.try_recv().expect("a line")).expect("JSON");
        assert_eq!(
            (&first["@message"], &first["@level"], &first["node"]),
            (&"two\nlines".into(), &"info".into(), &"n1".into())
        );
        assert!(json.try_recv().expect("a line").contains("detail"));
        let others: Vec<_> = std::iter::from_fn(|| follow(Level::INFO, LogFormat::Text)).collect();
        assert_eq!(others.len(), FOLLOWERS_MAX - 2);
        drop(others);
        assert!(follow(Level::INFO, LogFormat::Text).is_some(), "a place is free again");
    }
}
