import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.BiPredicate;

/** The commands of tenure-bench: see src/peer/mod.rs. */
interface Protocol {
    /** What one thread does again and again. */
    interface Task {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    /** A task for the lock with this key. */
    Task create(String key) throws Exception;

    /** Obeys until the pipe is closed. */
    static void serve(Protocol protocol) throws IOException {
        List<Task> turns = new ArrayList<>();
        List<Task> hots = new ArrayList<>();
        ExecutorService threads = Executors.newCachedThreadPool();
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            int tasks = Integer.parseInt(words[2]);
            long first = Long.parseLong(words[1]);
            String answer;
            try {
                if (words[0].equals("turn")) {
                    while (turns.size() < tasks) {
                        turns.add(protocol.create("java" + turns.size()));
                    }
                    long each = (first + tasks - 1) / tasks;
                    answer = run(threads, turns.subList(0, tasks), false, 0, (done, start) -> done < each);
                } else {
                    while (hots.size() < tasks) {
                        hots.add(protocol.create("hot"));
                    }
                    long hold = Long.parseLong(words[3]);
                    answer = run(threads, hots.subList(0, tasks), true, hold,
                        (done, start) -> System.nanoTime() - start < first * 1_000_000);
                }
            } catch (Exception error) {
                answer = "{\"error\":\"" + error.toString().replaceAll("[\"\\\\\\n]", " ") + "\"}";
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    private static String run(ExecutorService threads, List<Task> tasks, boolean hot, long hold,
            BiPredicate<Integer, Long> goOn) throws Exception {
        long start = System.nanoTime();
        List<Future<List<Double>>> running = new ArrayList<>();
        int[] grants = new int[tasks.size()];
        for (int n = 0; n < grants.length; n++) {
            int number = n;
            Task task = tasks.get(n);
            running.add(threads.submit(() -> {
                List<Double> times = new ArrayList<>();
                while (goOn.test(times.size(), start)) {
                    long began = System.nanoTime();
                    task.acquire();
                    long waited = System.nanoTime() - began;
                    // A grant after the end, when others have stopped, says nothing about fairness.
                    if (goOn.test(times.size(), start)) {
                        grants[number]++;
                    }
                    if (hold > 0) {
                        Thread.sleep(hold);
                    }
                    task.release();
                    times.add((hot ? waited : System.nanoTime() - began) / 1e3);
                }
                return times;
            }));
        }
        List<Double> all = new ArrayList<>();
        for (Future<List<Double>> task : running) {
            List<Double> times = task.get();
            all.addAll(times);
        }
        double elapsed = (System.nanoTime() - start) / 1e3;
        double[] at = percentiles(all, 50, 99, 100);
        double[] first = percentiles(running.isEmpty() ? all : running.get(0).get(), 50, 100);
        return String.format(java.util.Locale.ROOT,
            "{\"elapsed_us\":%f,\"p50_us\":%f,\"p99_us\":%f,\"max_us\":%f,\"grants\":%s,\"total\":%d,"
                + "\"first_p50_us\":%f,\"first_max_us\":%f}",
            elapsed, at[0], at[1], at[2], Arrays.toString(grants), all.size(), first[0], first[1]);
    }

    private static double[] percentiles(List<Double> times, int... percents) {
        double[] sorted = times.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        int last = sorted.length - 1;
        return Arrays.stream(percents)
            .mapToDouble(percent -> last < 0 ? 0 : sorted[(int) ((long) last * percent / 100)]).toArray();
    }
}
