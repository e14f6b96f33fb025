//! A real `redis-server` of its own: free port, own folder, nothing kept on disk unless asked for.

use crate::process::Process;
use crate::time::wait_for;
use crate::{Error, ports};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const START_LIMIT: Duration = Duration::from_secs(30);
const CALL_LIMIT: Duration = Duration::from_secs(5);
const STOP_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct RedisServer {
    addr: SocketAddr,
    extra: Vec<String>,
    process: Option<Process>,
    dir: TempDir,
}

// === impl RedisServer ===

impl RedisServer {
    /// Starts one and waits until it answers.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(&[])
    }

    /// With more arguments, such as `["--appendonly", "yes"]`; the last word on an option wins.
    pub fn start_with(extra: &[&str]) -> Result<Self, Error> {
        let mut server = Self::reserve()?;
        server.extra = extra.iter().map(ToString::to_string).collect();
        server.restart()?;
        Ok(server)
    }

    /// What [`RedisServer::restart`] adds to the command line from now on.
    pub fn set_args(&mut self, extra: &[String]) {
        self.extra = extra.to_vec();
    }

    /// Its address is known, but nothing runs there until [`RedisServer::restart`].
    pub fn reserve() -> Result<Self, Error> {
        Ok(Self {
            addr: ports::free_addr()?,
            extra: Vec::new(),
            process: None,
            dir: tempfile::tempdir().map_err(Error::io("create a folder for redis"))?,
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Stops it so that all it holds is on disk.
    pub fn shut_down(&mut self) -> Result<(), Error> {
        // It answers by closing the connection.
        let _ended = self.command(&["SHUTDOWN", "SAVE"]);
        match &mut self.process {
            Some(process) => process.wait_exit(STOP_LIMIT).map(drop),
            None => Ok(()),
        }
    }

    /// What is on disk now, as a backup has it.
    pub fn copy_data(&self) -> Result<TempDir, Error> {
        let copy = tempfile::tempdir().map_err(Error::io("create a folder for a copy"))?;
        copy_folder(self.dir.path(), copy.path())?;
        Ok(copy)
    }

    /// Kills it and starts it on the same port with what a copy holds.
    pub fn restart_with(&mut self, copy: &TempDir) -> Result<(), Error> {
        self.kill();
        self.clear_data()?;
        copy_folder(copy.path(), self.dir.path())?;
        self.restart()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port, with what is on disk: nothing, unless persistence was asked for.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.kill();
        let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        command
            .current_dir(self.dir.path())
            .args(["--bind", "127.0.0.1"])
            .args(["--port", &self.addr.port().to_string()])
            .args(["--save", ""])
            .args(["--appendonly", "no"])
            .args(["--maxmemory-policy", "noeviction"])
            .args(&self.extra);
        let name = format!("redis-server {}", self.addr);
        let process = Process::start(name, &mut command, self.dir.path().join("redis.log"))?;
        self.process = Some(process);
        self.wait_ready()
    }

    /// Kills it and starts it on the same port with nothing in it, whatever its persistence.
    pub fn restart_empty(&mut self) -> Result<(), Error> {
        self.kill();
        self.clear_data()?;
        self.restart()
    }

    fn clear_data(&self) -> Result<(), Error> {
        for entry in std::fs::read_dir(self.dir.path()).map_err(Error::io("list redis' folder"))? {
            let path = entry.map_err(Error::io("list redis' folder"))?.path();
            let removed = match path.extension().and_then(|e| e.to_str()) {
                Some("log") => Ok(()),
                _ if path.is_dir() => std::fs::remove_dir_all(&path),
                _ => std::fs::remove_file(&path),
            };
            removed.map_err(Error::io(format!("remove {}", path.display())))?;
        }
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<(), Error> {
        let what = format!("redis-server {} to answer PING", self.addr);
        let mut ended = None;
        let ready = wait_for(START_LIMIT, &what, || {
            if let Some(Err(error)) = self.process.as_mut().map(Process::check_alive) {
                ended = Some(error);
                return Some(());
            }
            self.ping().then_some(())
        });
        match ended {
            Some(error) => Err(error),
            None => ready,
        }
    }

    pub fn ping(&self) -> bool {
        self.command(&["PING"]).is_ok_and(|reply| reply == "PONG")
    }

    /// One command on a connection of its own. The reply as text: of a status, an integer or a bulk string what it says
    /// (nil is empty), of an array its length.
    pub fn command(&self, words: &[&str]) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.addr, CALL_LIMIT)?;
        stream.set_read_timeout(Some(CALL_LIMIT))?;
        stream.set_write_timeout(Some(CALL_LIMIT))?;
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(request.as_bytes())?;
        read_reply(&mut BufReader::new(stream))
    }
}

/// All but logs.
fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(from).map_err(Error::io("list redis' folder"))? {
        let path = entry.map_err(Error::io("list redis' folder"))?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        let target = to.join(name);
        if path.is_dir() {
            std::fs::create_dir_all(&target).map_err(Error::io("create a folder for a copy"))?;
            copy_folder(&path, &target)?;
        } else if path.extension().is_none_or(|e| e != "log") {
            std::fs::copy(&path, &target).map_err(Error::io(format!("copy {}", path.display())))?;
        }
    }
    Ok(())
}

fn read_reply(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, format!("reply {line:?}"));
    let rest = line.get(1..).ok_or_else(unexpected)?;
    match line.as_bytes()[0] {
        b'+' | b':' | b'*' => Ok(rest.to_owned()),
        b'-' => Err(io::Error::other(rest.to_owned())),
        b'$' if rest == "-1" => Ok(String::new()),
        b'$' => {
            let length: usize = rest.parse().map_err(|_| unexpected())?;
            let mut bulk = vec![0; length];
            from.read_exact(&mut bulk)?;
            Ok(String::from_utf8_lossy(&bulk).into_owned())
        }
        _ => Err(unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_what_it_is_told_until_it_is_killed() {
        let mut redis = RedisServer::start().expect("redis-server starts");
        assert_eq!(redis.command(&["SET", "k", "v"]).unwrap(), "OK");
        assert_eq!(redis.command(&["GET", "k"]).unwrap(), "v");
        let url = redis.url();
        redis.kill();
        assert!(!redis.ping());
        redis.restart_empty().expect("it starts again");
        assert_eq!(redis.url(), url);
        assert_eq!(redis.command(&["DBSIZE"]).unwrap(), "0");
    }

    #[test]
    fn with_persistence_only_an_empty_restart_forgets() {
        let mut redis =
            RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
                .expect("redis-server starts");
        redis.command(&["SET", "k", "v"]).unwrap();
        redis.restart().expect("it starts again");
        assert_eq!(redis.command(&["GET", "k"]).unwrap(), "v");
        redis.restart_empty().expect("it starts again");
        assert_eq!(redis.command(&["GET", "k"]).unwrap(), "");
    }

    #[test]
    fn a_server_that_cannot_start_says_why() {
        let error = RedisServer::start_with(&["--no-such-option", "1"]).unwrap_err();
        assert!(error.to_string().contains("no-such-option"), "{error}");
    }
}
