//! Applications: `starling fake-service`.

use std::process::Command;

use crate::process::Process;
use crate::{http, tools, wait};

/// One running fake service.
#[derive(Debug)]
pub struct App {
    /// Where it listens on the loopback.
    pub port: u16,
    /// The process.
    pub process: Process,
}

impl App {
    /// Starts one under `name` on `port`, and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn start(name: &str, port: u16, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(tools::starling());
        command.arg("fake-service").env_clear().env("NAME", name).env("LISTEN_ADDR", format!("127.0.0.1:{port}"));
        command.envs(environment.iter().copied());
        let mut app = Self { port, process: Process::spawn(&format!("app-{name}"), command) };
        let authority = app.authority();
        wait::eventually(&format!("{name} is ready"), async || {
            app.process.expect_running()?;
            let answer = http::get(&authority, "/ready").await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.status);
            Ok(())
        })
        .await;
        app
    }

    /// HOST:PORT.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}
