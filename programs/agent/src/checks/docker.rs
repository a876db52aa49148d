//! Checks in containers: a command that Docker runs there. Exit 0 passes, 1 warns, everything else is critical.
//!
//! Source: Docker's Engine API, "Exec": a command is made, started and, once its output has ended, asked for its exit code. The output comes
//! in frames of a kind, three zeros and a length, as it has no terminal. A command whose check is given up goes on in its container: the API
//! has no call that would end it.

use std::path::Path;

use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::failure::Failure;
use super::script::{Tail, verdict};
use super::{chain, critical};
use crate::registrations::Health;

/// Where Docker listens on the machine of its clients.
pub(super) const SOCKET: &str = "/var/run/docker.sock";

/// Bytes of an answer that is no output.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Bytes before the output in each frame.
const FRAME_HEAD: usize = 8;

/// What runs in the container: the command by itself, or by the shell, which is not to read its arguments.
pub(super) fn command(shell: &str, args: &[String]) -> Vec<String> {
    let by_shell = [shell, "-c", r#"exec "$0" "$@""#].map(str::to_owned);
    let before = if shell.is_empty() { &[][..] } else { &by_shell[..] };
    [before, args].concat()
}

/// Runs `command` in `container`, by the Docker that listens at `socket`.
pub(super) async fn run(socket: &Path, container: &str, command: Vec<String>) -> Result<Health, Failure> {
    let ran = exec(socket, container, command).await;
    let (code, output) = ran.map_err(|failure| failure.of(&format!("Docker check of {container}")))?;
    match code {
        Some(code) => Ok(Health { status: verdict(Some(code)), output }),
        None => Ok(critical(format!("Docker tells no exit code\n{output}"))),
    }
}

async fn exec(socket: &Path, container: &str, command: Vec<String>) -> Result<(Option<i64>, String), Failure> {
    let body = json!({"AttachStdin": false, "AttachStdout": true, "AttachStderr": true, "Tty": false, "Cmd": command});
    let made = asked(call(socket, Method::POST, &format!("/containers/{container}/exec"), Some(&body)).await?).await?;
    let id = made["Id"].as_str().ok_or_else(|| "Docker names no command".to_owned())?.to_owned();
    let start = json!({"Detach": false, "Tty": false});
    let started = call(socket, Method::POST, &format!("/exec/{id}/start"), Some(&start)).await?;
    let output = output(started).await?;
    let ended = asked(call(socket, Method::GET, &format!("/exec/{id}/json"), None).await?).await?;
    Ok((ended["ExitCode"].as_i64(), output))
}

/// One request over a connection of its own.
async fn call(socket: &Path, method: Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, Failure> {
    let stream =
        UnixStream::connect(socket).await.map_err(|error| Failure::from(error).of(&socket.to_string_lossy()))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| chain(&error))?;
    // It ends with the answer, and with whoever reads that.
    tokio::spawn(connection);
    let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
    let request = Request::builder().method(method).uri(path).header("host", "docker");
    let request = request.header("content-type", "application/json").body(Full::new(body));
    let response = sender.send_request(request.map_err(|error| error.to_string())?).await;
    Ok(response.map_err(|error| chain(&error))?)
}

/// An answer in JSON, which may be that it is refused.
async fn asked(response: Response<Incoming>) -> Result<Value, Failure> {
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    if status.is_success() { Ok(value) } else { Err(refused(status, &value)) }
}

fn refused(status: StatusCode, body: &Value) -> Failure {
    format!("{status}: {}", body["message"].as_str().unwrap_or("no reason is given")).into()
}

/// What the command has said, until it said all.
async fn output(response: Response<Incoming>) -> Result<String, Failure> {
    if !response.status().is_success() {
        return match asked(response).await {
            Ok(_) => Err("Docker does not start it".to_owned().into()),
            Err(failure) => Err(failure),
        };
    }
    let (mut body, mut tail) = (response.into_body(), Tail::default());
    let (mut read, mut left) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| chain(&error))?.into_data() else { continue };
        read.extend_from_slice(&data);
        loop {
            let here = read.len().min(left);
            tail.push(&read.split_to(here));
            left -= here;
            if left > 0 || read.len() < FRAME_HEAD {
                break;
            }
            let mut head = read.split_to(FRAME_HEAD);
            head.advance(FRAME_HEAD / 2);
            left = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
        }
    }
    Ok(tail.text())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use hyper::server::conn::http1 as server;
    use hyper::service::service_fn;
    use starling_model::CheckStatus;
    use tokio::net::UnixListener;

    use super::*;

    /// An engine with the container `web`, whose commands all end with this code, having said two things.
    fn engine(folder: &Path, code: i64) -> PathBuf {
        let socket = folder.join(format!("{code}.sock"));
        let listener = UnixListener::bind(&socket).expect("a socket");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = service_fn(move |request: Request<Incoming>| answer(request, code));
                tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        socket
    }

    async fn answer(request: Request<Incoming>, code: i64) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await?.to_bytes();
        let (status, body) = match path.as_str() {
            "/containers/web/exec" => {
                let asked: Value = serde_json::from_slice(&body).expect("JSON");
                assert_eq!(asked["Cmd"], json!(["true"]));
                (201, json!({"Id": "e1"}).to_string().into_bytes())
            }
            "/exec/e1/start" => (200, [&b"\x01\0\0\0\0\0\0\x03out"[..], b"\x02\0\0\0\0\0\0\x04 err"].concat()),
            "/exec/e1/json" => (200, json!({"ExitCode": code, "Running": false}).to_string().into_bytes()),
            _ => (404, json!({"message": "No such container"}).to_string().into_bytes()),
        };
        Ok(Response::builder().status(status).body(Full::new(body.into())).expect("an answer"))
    }

    #[tokio::test]
    async fn the_exit_code_in_the_container_is_the_status() {
        let folder = tempfile::tempdir().expect("a folder");
        for (code, status) in [(0, CheckStatus::Passing), (1, CheckStatus::Warning), (2, CheckStatus::Critical)] {
            let socket = engine(folder.path(), code);
            let health = run(&socket, "web", command("", &["true".to_owned()])).await.expect("it runs");
            assert_eq!((health.status, health.output.as_str()), (status, "out err"));
        }
        let text = |failure| match failure {
            Err(Failure::Application(text)) => text,
            other => panic!("{other:?}"),
        };
        let refused = run(&folder.path().join("0.sock"), "other", vec!["true".to_owned()]).await.map(|_| ());
        assert_eq!(text(refused), "Docker check of other: 404 Not Found: No such container");
        let nobody = text(run(&folder.path().join("none"), "web", vec!["true".to_owned()]).await.map(|_| ()));
        assert!(nobody.starts_with("Docker check of web: /") && nobody.contains("No such file"), "{nobody}");
    }

    #[test]
    fn a_shell_runs_the_command_and_reads_none_of_it() {
        let args = ["/bin/check".to_owned(), "a b; $c".to_owned()];
        assert_eq!(command("", &args), args);
        assert_eq!(command("/bin/sh", &args)[..3], ["/bin/sh", "-c", r#"exec "$0" "$@""#]);
        assert_eq!(command("/bin/sh", &args)[3..], args);
    }
}
