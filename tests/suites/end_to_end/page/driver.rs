//! A headless Chromium, driven by chromedriver's protocol (W3C WebDriver).

use std::process::Stdio;

use serde_json::{Value, json};
use tests::{Failure, Outcome, Stage, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Key under which the protocol returns elements.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Environment variable with the path of chromedriver, which finds its browser.
const DRIVER: &str = "OUTBOX_CHROMEDRIVER";
/// Maximum starts of the driver, if it ends before it has reported its port.
const DRIVER_ATTEMPTS: usize = 5;

/// A browser. Dropping it kills the process.
pub(crate) struct Browser {
    address: String,
    session: String,
    profile: String,
    _driver: Child,
}

impl Drop for Browser {
    /// Kills the browser, because the driver is killed on drop and would leave the browser of a
    /// failed test running.
    fn drop(&mut self) {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes.map(|entry| entry.path()) {
            let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains(&self.profile)
                && let Some(pid) = process.file_name()
            {
                let _ = std::process::Command::new("kill").arg("-KILL").arg(pid).status();
            }
        }
    }
}

/// Returns whether `cargo xtask test` has found a browser and its driver.
pub(crate) fn is_there() -> bool {
    std::env::var_os(DRIVER).is_some()
}

impl Browser {
    /// Starts a browser with an empty profile. `with_scripts` enables the scripts of pages.
    pub(crate) async fn start(stage: &Stage, with_scripts: bool) -> Result<Self, Failure> {
        let (driver, address) = Self::driver(stage).await?;
        let profile = stage.folder().join("profile").display().to_string();
        let argument = format!("--user-data-dir={profile}");
        let mut browser = Self { address, session: String::new(), profile, _driver: driver };
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,900",
            &argument,
        ];
        let options = json!({
            "args": arguments,
            "prefs": { "profile.managed_default_content_settings.javascript": if with_scripts { 1 } else { 2 } }
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" }
        } } });
        let made = browser.call("POST", "/session", &wanted).await?;
        browser.session = made["sessionId"].as_str().ok_or_else(|| format!("no session: {made}"))?.to_owned();
        Ok(browser)
    }

    /// Starts the driver, and returns its address. The driver picks a port for IPv4 and then wants
    /// the same one for IPv6; if another program has that port, the driver ends, and is started
    /// again.
    async fn driver(stage: &Stage) -> Result<(Child, String), Failure> {
        for attempt in 1..=DRIVER_ATTEMPTS {
            let log = stage.folder().join(format!("chromedriver-{attempt}.log"));
            let mut driver = Command::new(std::env::var_os(DRIVER).ok_or("no chromedriver")?)
                .arg("--port=0")
                .stdin(Stdio::null())
                .stdout(std::fs::File::create(&log)?)
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()?;
            let told = eventually("the driver tells its port, or ends", || {
                let ended = driver.try_wait();
                let text = std::fs::read_to_string(&log);
                async move {
                    let (ended, text) = (ended?.is_some(), text?);
                    let port =
                        text.split_once("successfully on port ").and_then(|(_, rest)| rest.split_once('.'));
                    let address = port.map(|(port, _)| format!("127.0.0.1:{port}"));
                    Ok((ended || address.is_some()).then_some(address.filter(|_| !ended)))
                }
            })
            .await?;
            if let Some(address) = told {
                return Ok((driver, address));
            }
        }
        Err(format!("the driver ended {DRIVER_ATTEMPTS} times before it told its port").into())
    }

    /// Ends the browser.
    pub(crate) async fn quit(self) -> Outcome {
        self.call("DELETE", &self.path(""), &Value::Null).await?;
        Ok(())
    }

    /// Opens an address.
    pub(crate) async fn go(&self, url: &str) -> Outcome {
        self.call("POST", &self.path("/url"), &json!({ "url": url })).await?;
        Ok(())
    }

    /// Runs a script and returns its value.
    pub(crate) async fn run(&self, script: &str) -> Result<Value, Failure> {
        self.call("POST", &self.path("/execute/sync"), &json!({ "script": script, "args": [] })).await
    }

    /// Types into the element of a selector.
    pub(crate) async fn fill(&self, selector: &str, text: &str) -> Outcome {
        let element = self.element(selector).await?;
        let path = self.path(&format!("/element/{element}/value"));
        self.call("POST", &path, &json!({ "text": text })).await?;
        Ok(())
    }

    /// Presses the element of a selector.
    pub(crate) async fn press(&self, selector: &str) -> Outcome {
        let element = self.element(selector).await?;
        self.call("POST", &self.path(&format!("/element/{element}/click")), &json!({})).await?;
        Ok(())
    }

    /// Presses a key that is not a letter.
    pub(crate) async fn key(&self, key: char) -> Outcome {
        let keys = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys }] });
        self.call("POST", &self.path("/actions"), &actions).await?;
        Ok(())
    }

    /// Returns the visible text.
    pub(crate) async fn text(&self) -> Result<String, Failure> {
        Ok(self.run("return document.body.innerText").await?.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until this text is visible.
    pub(crate) async fn shows(&self, part: &str) -> Outcome {
        let what = format!("the browser shows {part:?}");
        let looked = eventually(&what, || async { Ok(self.text().await?.contains(part).then_some(())) });
        match looked.await {
            Ok(()) => Ok(()),
            Err(error) => Err(format!("{error}; it shows: {}", self.text().await?).into()),
        }
    }

    /// Sets the colour scheme and the size of the window in pixels.
    pub(crate) async fn look(&self, scheme: &str, width: u32, height: u32) -> Outcome {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &media).await?;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size).await?;
        Ok(())
    }

    /// Returns a screenshot of the window, as PNG in base64.
    pub(crate) async fn picture(&self) -> Result<String, Failure> {
        let taken = self.call("GET", &self.path("/screenshot"), &Value::Null).await?;
        Ok(taken.as_str().ok_or("no picture")?.to_owned())
    }

    /// Returns a picture of the whole page, including the part below the window, as PNG in base64.
    pub(crate) async fn whole_picture(&self) -> Result<String, Failure> {
        let parameters = json!({ "format": "png", "captureBeyondViewport": true });
        let taken = self.devtools("Page.captureScreenshot", &parameters).await?;
        Ok(taken["data"].as_str().ok_or("no picture")?.to_owned())
    }

    /// Returns the messages in the browser's log since the last call.
    pub(crate) async fn complaints(&self) -> Result<Vec<String>, Failure> {
        let lines = self.call("POST", &self.path("/se/log"), &json!({ "type": "browser" })).await?;
        let told = lines.as_array().into_iter().flatten();
        Ok(told.map(|line| line["message"].to_string()).collect())
    }

    async fn devtools(&self, command: &str, parameters: &Value) -> Result<Value, Failure> {
        let body = json!({ "cmd": command, "params": parameters });
        self.call("POST", &self.path("/goog/cdp/execute"), &body).await
    }

    async fn element(&self, selector: &str) -> Result<String, Failure> {
        let body = json!({ "using": "css selector", "value": selector });
        let found = self.call("POST", &self.path("/element"), &body).await?;
        Ok(found[ELEMENT].as_str().ok_or_else(|| format!("no {selector}: {found}"))?.to_owned())
    }

    fn path(&self, rest: &str) -> String {
        format!("/session/{}{rest}", self.session)
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(&self.address).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        // The driver leaves the connection open.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8(head)?.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.ok_or("the driver told no length")?];
        stream.read_exact(&mut body).await?;
        let value: Value = serde_json::from_slice(&body)?;
        match value["value"]["error"].as_str() {
            Some(error) => Err(format!("{method} {path}: {error}: {}", value["value"]["message"]).into()),
            None => Ok(value["value"].clone()),
        }
    }
}
