//! Runs the view: one thread draws, others read keys, wait for signals, look at the host, and end sandboxes.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use penfold_control::StopResult;
use penfold_sys::signal::{self, SignalFd, SignalSet};
use ratatui_crossterm::crossterm::event::{self, Event, KeyEvent};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;

use crate::app::{Action, App};
use crate::draw::{self, Look};
use crate::model::{Actions, Ending, Source};
use crate::refresh::{self, Looked, Shown, Wanted};
use crate::screen::{Screen, Taken, restore_terminal, take_again};

/// What the view needs from its caller.
pub struct Settings {
    /// Finds the sandboxes.
    pub source: Box<dyn Source>,
    /// Ends sandboxes.
    pub actions: Arc<dyn Actions>,
    /// The sandbox to open at first.
    pub open: Option<String>,
    /// Whether to use colour.
    pub has_colour: bool,
    /// SIGTERM, SIGHUP, SIGINT and SIGTSTP, which the caller has blocked in all threads.
    pub signals: SignalFd,
}

/// How the view ended.
#[derive(Debug)]
pub struct End {
    /// The signal that ended it; `None` for a key, and for a terminal that is gone.
    pub signal: Option<i32>,
    /// The sandboxes that are still being ended.
    pub unfinished: Vec<(String, Ending)>,
}

/// The view cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The terminal does not do what is needed.
    #[error("cannot use the terminal")]
    Terminal(#[source] io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

enum Message {
    Key(KeyEvent),
    Resized,
    Signal(i32),
    Looked(Box<Looked>),
    Ended(String, Ending, Result<StopResult, String>),
    /// No key will come any more.
    NoKeys,
}

/// Shows the sandboxes until a key or a signal ends it. The terminal is then as it was.
///
/// # Errors
/// If the terminal cannot be used, or there can be no more threads.
pub fn run_view(settings: Settings) -> Result<End, TopError> {
    let Settings { source, actions, open, has_colour, signals } = settings;
    let (taken, screen) = Taken::take().map_err(TopError::Terminal)?;
    let mut app = App::default();
    if let Some(id) = open {
        app.open_tree(id);
    }
    let wanted = Arc::new(Wanted::new(Shown { page: app.page(), visible: app.visible() }));
    let (sender, receiver) = channel();
    read_keys(sender.clone())?;
    wait_for_signals(signals, sender.clone())?;
    look(source, Arc::clone(&wanted), sender.clone())?;
    let view = View { app, look: Look { has_colour }, screen, taken, wanted, actions, sender };
    view.show(&receiver)
}

fn read_keys(sender: Sender<Message>) -> Result<(), TopError> {
    thread("keys", move || {
        loop {
            let message = match event::read() {
                Ok(Event::Key(key)) => Message::Key(key),
                Ok(Event::Resize(..)) => Message::Resized,
                Ok(_) => continue,
                Err(_) => Message::NoKeys,
            };
            let is_last = matches!(message, Message::NoKeys);
            if sender.send(message).is_err() || is_last {
                return;
            }
        }
    })
}

fn wait_for_signals(signals: SignalFd, sender: Sender<Message>) -> Result<(), TopError> {
    thread("signals", move || {
        loop {
            let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, None);
            while let Ok(Some(taken)) = signals.take() {
                if sender.send(Message::Signal(taken.signal)).is_err() {
                    return;
                }
            }
        }
    })
}

fn look(source: Box<dyn Source>, wanted: Arc<Wanted>, sender: Sender<Message>) -> Result<(), TopError> {
    thread("look", move || {
        refresh::refresh_until_over(source, &wanted, |looked| {
            sender.send(Message::Looked(Box::new(looked))).is_ok()
        });
    })
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), TopError> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(TopError::Thread)
}

struct View {
    app: App,
    look: Look,
    screen: Screen,
    taken: Taken,
    wanted: Arc<Wanted>,
    actions: Arc<dyn Actions>,
    sender: Sender<Message>,
}

impl View {
    fn show(mut self, messages: &Receiver<Message>) -> Result<End, TopError> {
        let mut signal = None;
        loop {
            if self.draw().is_err() {
                break;
            }
            // All threads hold a sender: this waits for a message, not for their end.
            let Ok(first) = messages.recv() else { break };
            let mut is_over = false;
            for message in std::iter::once(first).chain(messages.try_iter()) {
                match message {
                    Message::NoKeys => is_over = true,
                    Message::Signal(number) if number != Signal::TSTP.as_raw() => {
                        signal = Some(number);
                        is_over = true;
                    }
                    Message::Signal(_) => self.suspend()?,
                    other => is_over |= self.take(other)?,
                }
            }
            if is_over {
                break;
            }
        }
        self.wanted.finish();
        let unfinished = self.app.endings.unfinished();
        drop(self.taken);
        Ok(End { signal, unfinished })
    }

    /// Acts on a message; true if it is the last one.
    fn take(&mut self, message: Message) -> Result<bool, TopError> {
        match message {
            Message::Key(key) => match self.app.key(key) {
                Action::Quit => return Ok(true),
                Action::Suspend => suspend_job(),
                Action::Look => self.tell(true),
                Action::Draw => {}
                Action::End(id, ending) => self.end(id, ending)?,
            },
            Message::Looked(looked) => {
                let Looked { listed, details, page, lines } = *looked;
                if let Some(listed) = listed {
                    self.app.list(listed);
                }
                self.app.fill(details, &page, lines);
                // A list may fill rows of which no details are known yet.
                let is_unknown = |id: &String| !self.app.details.contains_key(id);
                self.tell(self.app.visible().iter().any(is_unknown));
            }
            Message::Ended(id, ending, result) => {
                self.app.endings.finish(&id, ending, result);
                self.tell(true);
            }
            Message::Resized | Message::Signal(_) | Message::NoKeys => {}
        }
        Ok(false)
    }

    fn draw(&mut self) -> io::Result<()> {
        let (app, look) = (&mut self.app, self.look);
        self.screen.draw(|frame| {
            app.fit(draw::line_count(frame.area().height));
            draw::draw_screen(app, look, frame.buffer_mut());
        })?;
        Ok(())
    }

    /// Says what the screen shows to the thread that looks.
    fn tell(&self, at_once: bool) {
        self.wanted.show(Shown { page: self.app.page(), visible: self.app.visible() }, at_once);
    }

    fn end(&self, id: String, ending: Ending) -> Result<(), TopError> {
        let (actions, sender) = (Arc::clone(&self.actions), self.sender.clone());
        thread("end", move || {
            let result = actions.end(&id, ending);
            let _ = sender.send(Message::Ended(id, ending, result));
        })
    }

    /// Gives the terminal back, then stops until a shell continues this process, and takes the terminal again.
    fn suspend(&mut self) -> Result<(), TopError> {
        restore_terminal();
        let set = SignalSet::of([Signal::TSTP.as_raw()]);
        let before = signal::block_signals(&SignalSet::empty()).map_err(TopError::Terminal)?;
        let open = SignalSet::of((1..=64).filter(|&one| before.contains(one) && !set.contains(one)));
        signal::set_mask(&open).map_err(TopError::Terminal)?;
        // The default action, not SIGSTOP: the kernel leaves it out where no shell could continue this process.
        #[expect(clippy::disallowed_methods, reason = "this process cannot be another")]
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP);
        signal::set_mask(&before).map_err(TopError::Terminal)?;
        take_again().map_err(TopError::Terminal)?;
        // `clear` would ask the terminal for the place of the cursor, and the thread that reads keys would get the answer.
        let size = self.screen.size().map_err(TopError::Terminal)?;
        self.screen.resize(size.into()).map_err(TopError::Terminal)
    }
}

/// Sends SIGTSTP to the whole job, as the terminal does for Ctrl-Z; this process takes it from its descriptor.
fn suspend_job() {
    let _ = rustix::process::kill_current_process_group(Signal::TSTP);
}
