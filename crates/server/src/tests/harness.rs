//! Starts faces on ports of their own, and speaks plain HTTP to them.

use crate::face::fake::Fake;
use crate::serve::run_faces;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(super) struct Faces {
    pub(super) http: SocketAddr,
    pub(super) grpc: SocketAddr,
    pub(super) shutdown: CancellationToken,
    pub(super) task: JoinHandle<()>,
}

/// A whole answer, as it came over the wire.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// A line each, without `date`, in the order of their names.
    pub(super) headers: String,
    pub(super) body: String,
}

impl Faces {
    pub(super) async fn start(fake: &Fake) -> Self {
        let listener = || async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            (listener.local_addr().expect("it is bound"), listener)
        };
        let (http, http_listener) = listener().await;
        let (grpc, grpc_listener) = listener().await;
        let shutdown = CancellationToken::new();
        let faces = run_faces(fake.clone(), http_listener, grpc_listener, shutdown.clone());
        Self {
            http,
            grpc,
            shutdown,
            task: tokio::spawn(faces),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, b"").await
    }

    pub(super) async fn check(&self, body: &str) -> Answer {
        self.send("POST", "/v1/check", body.as_bytes()).await
    }

    pub(super) async fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let length = body.len();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.raw(&request).await
    }

    pub(super) async fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.http).await.expect("it listens");
        stream.write_all(request).await.expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("it answers");
        Answer::parse(&String::from_utf8(answer).expect("answers are text"))
    }
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let (first, headers) = head.split_once("\r\n").unwrap_or((head, ""));
        let mut headers: Vec<&str> = headers
            .split("\r\n")
            .filter(|line| !line.starts_with("date:"))
            .collect();
        headers.sort_unstable();
        Self {
            status: first
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok())
                .expect("a status"),
            headers: headers.join("\n"),
            body: body.to_owned(),
        }
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }

    /// Asserts that this is a problem of the given status, code and field, and gives its detail.
    #[track_caller]
    pub(super) fn problem(&self, status: u16, code: &str, field: Option<&str>) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert!(
            self.headers
                .contains("content-type: application/problem+json"),
            "{self:?}"
        );
        let json = self.json();
        assert_eq!(json["code"], code, "{self:?}");
        assert_eq!(json["status"], status, "{self:?}");
        assert_eq!(json["field"].as_str(), field, "{self:?}");
        json["detail"].as_str().expect("a detail").to_owned()
    }
}
