//! An API whose answers are written down beforehand, and the binary run against it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest a connection may stay silent before the test gives up on it.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// One answer: which request it is for, and what it is.
#[derive(Debug, Clone)]
struct Answer {
    request: String,
    status: u16,
    body: String,
}

/// The API. Its thread ends with the test's process.
pub struct Api {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Api {
    /// Serves answers by `METHOD TARGET`; anything else gets 404.
    pub fn serve(answers: &[(&str, u16, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let answers: Vec<Answer> = answers
            .iter()
            .map(|(request, status, body)| Answer {
                request: (*request).to_owned(),
                status: *status,
                body: (*body).to_owned(),
            })
            .collect();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // One that breaks off is the binary's doing, and shows there.
                let _ = serve_one(stream, &answers, &log);
            }
        });
        Self { address, seen }
    }

    /// Requests so far, `METHOD TARGET`, then the token and the body if there are any.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic elsewhere").clone()
    }

    /// Runs the binary against it, with words split at blanks.
    pub fn run(&self, line: &str) -> Run {
        self.run_with(line, "", &[])
    }

    /// Runs the binary against it, with standard input and variables.
    pub fn run_with(&self, line: &str, input: &str, variables: &[(&str, &str)]) -> Run {
        let address = self.address.to_string();
        let variables = [&[("STARLING_HTTP_ADDR", address.as_str())], variables].concat();
        run(line, input, &variables)
    }
}

fn serve_one(stream: TcpStream, answers: &[Answer], log: &Mutex<Vec<String>>) -> Option<()> {
    stream.set_read_timeout(Some(SILENCE_MAX)).ok()?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let request = first.trim_end().strip_suffix(" HTTP/1.1")?.to_owned();
    let (mut length, mut token) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(("x-consul-token", value)) => token = format!(" token={value}"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let found = answers.iter().find(|answer| answer.request == request);
    let (status, answer) = found.map_or((404, "no such thing"), |answer| (answer.status, answer.body.as_str()));
    let body = String::from_utf8_lossy(&body);
    let shown = if body.is_empty() { format!("{request}{token}") } else { format!("{request}{token} {body}") };
    // Before the answer: who has it may look here.
    log.lock().expect("no panic elsewhere").push(shown);
    let head = format!("HTTP/1.1 {status} -\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
    reader.get_mut().write_all(format!("{head}{answer}").as_bytes()).ok()
}

/// Runs the binary to its end, with nothing of the developer's environment.
pub fn run(line: &str, input: &str, variables: &[(&str, &str)]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.args(line.split_whitespace()).env_clear().envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary");
    // One that does not read its input closes it early, which is its right.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("its output");
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Run {
    #[track_caller]
    pub fn prints(self, code: i32, stdout: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (code, stdout), "{}", self.stderr);
    }

    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {:?}", self.stderr);
        }
    }
}
